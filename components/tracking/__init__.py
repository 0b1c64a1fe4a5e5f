"""Tracking: export of a finished or running run's records to trackers, outside of training."""
