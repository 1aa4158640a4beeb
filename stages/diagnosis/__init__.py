"""Rules over recorded metrics, and the verdict."""
