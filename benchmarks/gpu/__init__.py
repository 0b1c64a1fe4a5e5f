"""Benchmarks for half an hour on a GPU: cases, driver, peers, predictions, page."""
