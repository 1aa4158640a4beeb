"""What every stage shares: main, exit codes, outputs, identity, seeds and threads, progress, decisions."""
