"""Predictions from numbers alone: memory, time and bill of a run; never imports torch."""
