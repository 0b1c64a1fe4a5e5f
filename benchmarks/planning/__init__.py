"""How right and how fast planner and search are."""
