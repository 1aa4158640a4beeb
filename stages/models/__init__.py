"""Model families, the registry, structure and weights on disk."""
