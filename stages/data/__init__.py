"""Sources, splits, loaders."""
