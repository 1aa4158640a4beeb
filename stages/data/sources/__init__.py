"""Sources of raw data, one a file; `registry` names them."""
