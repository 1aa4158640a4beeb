"""The pipeline: one file per stage, one folder per part. See docs/ARCHITECTURE.md."""
