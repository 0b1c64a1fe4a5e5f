"""The device mesh, and one file for each axis: a function that parallelizes a plain decoder."""
