"""The program under every torch and Python of its range."""
