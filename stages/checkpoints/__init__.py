"""The checkpoint store: atomic, fingerprinted, never unpickled."""
