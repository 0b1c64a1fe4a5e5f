"""Profiling: the time of each part of a step, read from a trace of torch's profiler."""
