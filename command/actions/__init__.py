"""One file an action; its stem is what ``action=`` takes, its options: ``command.words``."""
