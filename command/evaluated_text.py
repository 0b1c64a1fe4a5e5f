"""What an evaluation found, in the terminal: a line for each source, text and metric."""

from collections.abc import Mapping
from typing import Any

from components.report import numbers
from components.report.evaluation import task_grid, text_grid
from components.report.tables import terminal_table
from components.terminal import console


def print_result(result: Mapping[str, Any]) -> None:
    """Print every section of the result file that there is."""
    out = console(width=160)
    out.print(_title(result))
    for grid in (text_grid([((), result)], lead=()), task_grid([((), result)], lead=())):
        if grid.rows:
            out.print(terminal_table(grid))
    if "held_out" in result:
        out.print(_compared(result["held_out"]))


def _title(result: Mapping[str, Any]) -> str:
    if "folder" in result:
        return str(result["folder"])
    step, checkpoint = result["step"], result["checkpoint"]
    return f"{result['recipe']}, scale {result['scale']}, step {step:,}: {checkpoint}"


def _compared(section: Mapping[str, Any]) -> str:
    mean, logged = section["mean_over_sources"], section["logged_in_training"]
    return (
        f"mean loss over sources {numbers.loss(mean)}, training logged {numbers.loss(logged)}; "
        f"{section['compute']} on {section['device']}"
    )
