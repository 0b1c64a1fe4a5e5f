"""Optimizers and schedules that count in tokens."""
