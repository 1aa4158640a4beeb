"""The rules: small pure functions over a history, each with its source."""
