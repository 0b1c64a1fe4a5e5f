"""Engines: a model in its layout (`parallelize`), and its step on a mesh or by DeepSpeed."""
