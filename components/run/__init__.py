"""The folder of a run, as anybody may have written it; without torch, for login nodes too."""
