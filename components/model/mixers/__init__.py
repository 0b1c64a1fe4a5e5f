"""Linear mixers: parts with a state per head instead of earlier keys and values."""
