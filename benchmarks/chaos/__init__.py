"""Runs with injected faults, compared with runs without faults."""
