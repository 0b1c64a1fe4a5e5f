"""The kit for a first half-hour on a GPU: cases, their driver, peers, predictions, the page."""
