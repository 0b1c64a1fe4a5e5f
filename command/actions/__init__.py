"""One file an action, those of a cluster in `jobs`; its stem is what ``action=`` takes."""
