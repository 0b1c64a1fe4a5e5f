"""Specifications of optimizers and learning-rate schedules."""
