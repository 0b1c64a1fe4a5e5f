"""Planner: predict memory, time and cost of a run from the recipe. Never imports torch."""
