"""Evaluation of a model: loss on held-out text and scores on lm-eval tasks."""
