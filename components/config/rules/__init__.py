"""Rules between sections: each says the path, the value, the rule, and a value that works."""
