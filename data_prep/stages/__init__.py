"""From raw text to clean text: passes of independent tasks, each resumable and checkable."""
