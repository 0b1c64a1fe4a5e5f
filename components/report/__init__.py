"""Report: tables, plots and the single-file HTML page. Imports no torch."""
