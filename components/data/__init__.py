"""Packed token files, their manifest, and the order in which samples are drawn."""
