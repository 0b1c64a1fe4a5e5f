"""Document filters: one file for each published set of rules."""
