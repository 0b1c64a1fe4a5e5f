"""Hugging Face in and out: configurations, tensors and tokenizers, both ways."""
