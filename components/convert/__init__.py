"""Import from and export to Hugging Face: configurations, tensors and tokenizers."""
