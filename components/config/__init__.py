"""The frozen, typed recipe and its arithmetic; imports no torch."""
