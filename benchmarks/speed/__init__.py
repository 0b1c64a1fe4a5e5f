"""What the speed page claims, from what is kept to docs/speed.md."""
