"""Plain torch models for one device; no framework, no process groups."""
