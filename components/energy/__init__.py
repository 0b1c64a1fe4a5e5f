"""Energy as the machine's own counters tell it; nothing is sampled, nothing is estimated."""
