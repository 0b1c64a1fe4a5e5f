"""Raw text to tokenizer to packed token files to manifest; stages as functions."""
