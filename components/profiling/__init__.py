"""Where the time of a step goes, read from a trace of torch's profiler."""
