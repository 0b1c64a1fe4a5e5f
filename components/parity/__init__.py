"""Parity proofs: a layout computes the same as one process."""
