"""Data preparation: raw text to tokenizer, token files and manifest."""
