"""Files of recipes, options and locks: read as data, checked, and trusted by their place."""
