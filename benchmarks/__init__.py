"""Speed, measured side by side; each benchmark is one command."""
