"""What a machine without internet needs for a run, in one folder with its own installer."""
