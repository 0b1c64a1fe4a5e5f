"""Read recipe, option and lock files as data, check them, and decide trust by their folder."""
