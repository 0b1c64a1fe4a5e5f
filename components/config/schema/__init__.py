"""Schema: the frozen, typed sections of a recipe and of a cluster's profile, each by itself."""
