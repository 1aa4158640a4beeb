"""Assembly: order, supervision, the command line. Of `stages` it imports `stages.config` alone, never torch."""
