"""Strict schemas, one file per section of params.yaml; free of torch."""
