"""Energy from the machine's own counters. Nothing is sampled or estimated."""
