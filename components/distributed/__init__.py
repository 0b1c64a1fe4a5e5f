"""The device mesh, and one file for each axis: a function poured over a plain decoder."""
