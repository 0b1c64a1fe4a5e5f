"""Specifications of the parts of a model: one file per module of components.model."""
