"""What holds for all tests."""

from hypothesis import settings

# No test is timed: the host may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
