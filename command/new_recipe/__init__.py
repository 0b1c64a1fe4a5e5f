"""Components of ``action=new``: the user's text and tokenizer, sizes by rule, and the file."""
