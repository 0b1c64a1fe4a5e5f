"""A run's own record, sent to trackers afterwards: nothing of it is part of training."""
