"""What ``action=new`` writes: the user's text and tokenizer, sizes by rule, and the page."""
