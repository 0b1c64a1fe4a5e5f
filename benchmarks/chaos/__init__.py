"""Runs that meet every fault that can be injected, beside runs that meet none."""
