"""Tables, plots and the one-file HTML report; imports no torch."""

from components.report.page import write_report
from components.report.run_folder import Run, load_run
from components.report.tables import summary_table

__all__ = ["Run", "load_run", "summary_table", "write_report"]
