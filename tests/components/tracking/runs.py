"""Run folders of a composed recipe with measurements written by hand, and what they hold."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.run.folder import RunFolder
from components.train.step_metrics import StepRecord
from tests.components.report.conftest import environment_tree, mark_line, write_history

Line = dict[str, Any]
Points = set[tuple[str, int, float]]
FIGURES = [one.name for one in fields(StepRecord) if one.name not in {"step", "samples_digest"}]


def step_line(step: int, shift: float = 0.0) -> Line:
    """Give every figure of the step a value of its own."""
    figures = {
        name: step + shift + place / 7 for place, name in enumerate(FIGURES) if name != "tokens"
    }
    return {"kind": "step", "step": step, "tokens": step * 512, "samples_digest": 9, **figures}


def held_out_line(step: int, shift: float = 0.0) -> Line:
    loss = step / 3 + shift
    by_source = {"eu": loss - 1, "de fr": loss + 1}
    line = {"kind": "held_out", "step": step, "tokens": step * 512, "seconds": 0.5}
    return {**line, "loss": loss, "weighted_loss": loss - 0.5, "by_source": by_source}


START = [mark_line("start", 0), held_out_line(0)]
STEPS = [step_line(step) for step in range(1, 6)]
# Steps 4 and 5 are thrown away and taken again, with other figures.
AGAIN = [mark_line("roll_back", 3), step_line(4, 0.5), step_line(5, 0.5), held_out_line(5, 0.5)]


def write_run(folder: Path, lines: list[Line], *words: str, status: str | None = None) -> Path:
    """Write a run folder, or write it anew."""
    recipe = compose_recipe(read_point(["recipe=teuken7b", *words]))
    folder.mkdir(exist_ok=True)
    RunFolder(folder).write_recipe(recipe)
    (folder / "environment.json").write_text(json.dumps(environment_tree()))
    write_history(folder, lines)
    if status is not None:
        (folder / "results.json").write_text(json.dumps({"status": status}))
    return folder


def points_of(lines: list[Line]) -> Points:
    """List name, step and value of all that was measured, read from the lines themselves."""
    points: Points = set()
    for line in lines:
        if line["kind"] == "step":
            points |= {
                (name, line["step"], line[name])
                for name in FIGURES
                if line.get(name) is not None  # of a part that the model has not
            }
        elif line["kind"] == "held_out":
            points.add(("held_out", line["step"], line["weighted_loss"]))
            points.add(("held_out_unweighted", line["step"], line["loss"]))
            points |= {
                (f"held_out_by_source/{name}", line["step"], loss)
                for name, loss in line["by_source"].items()
            }
    return points
