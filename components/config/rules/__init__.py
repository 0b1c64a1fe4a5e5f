"""Rules between sections; an error has the path, the value, the rule and a valid value."""
