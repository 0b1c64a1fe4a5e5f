"""A page for a proposal of computing time: every number of a planned run, with its source."""
