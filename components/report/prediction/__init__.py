"""What small runs predict of a large one, as tables and as a page."""
