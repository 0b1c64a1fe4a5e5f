"""Fault tolerance: monitoring of a run, its reactions to faults, and its reports."""
