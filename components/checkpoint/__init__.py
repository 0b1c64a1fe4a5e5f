"""Checkpoints: written while training goes on, whole or not there, checked before they load."""
