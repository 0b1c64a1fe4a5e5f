"""Evaluations of `action=evaluate`: in this process, on ranks and in scheduler jobs."""
