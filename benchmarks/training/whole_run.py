"""What does a run take beside its bare steps, and how long until the first one?

The recipe's miniature trains on its own prepared data by the real path, with all that a run has
(guards, watchdog, metrics, display), in this process. From the first step on, the time within
the engine's steps (forward, backward, averaging, judging, update) is set against the whole, and
so is the time of reading batches. Evaluations and checkpoints are put at the end and do not
count: their cadence is the recipe's choice. The time to the first step is that of the command
itself, in a process of its own, from its start until its first step is noted; imports are timed
apart. The first start reads programs that may not be in memory yet: all are kept, the median is
judged. Compiled runs of the command are set beside eager ones, in turns.

    python -m benchmarks.training.whole_run recipe=NAME [key=value ...]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, interval, keep_result, paired_ratio
from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from command.prepared_data import prepare_data
from components.child_process import python_environment
from components.engine.mesh_engine import MeshEngine
from components.run.folder import create_run_folder
from components.run.history import read_lines
from components.train.fit import fit
from components.train.prefetch import BatchThread

MOST_OUTSIDE, MOST_LOADING, MOST_FIRST_SECONDS = 0.03, 0.02, 12.0
STEPS, STARTS = 100, 3
ROUNDS, ROUND_STEPS, WARM_STEPS = 6, 20, 4
IMPORTS = "import components.train.fit"


class CallTimer:
    """Time the calls of some functions, and note when the engine's steps ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.ends: list[float] = []

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` so that its calls are timed under ``name``."""
        kept = self.seconds.setdefault(name, [])

        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                end = time.perf_counter()
                kept.append(end - began)
                if name == "step":
                    self.ends.append(end)

        return call


def own_words(words: list[str], steps: int, home: Path) -> list[str]:
    """Let the recipe take ``steps`` steps, look at held-out text and save at the end alone."""
    tokens = compose_recipe(read_point(words)).budget.global_batch_tokens * steps
    cadences = ("evaluation.every_tokens", "checkpoint.every_tokens")
    return [
        *words,
        f"budget.total_tokens={tokens}",
        *(f"{key}={tokens}" for key in cadences),
        "evaluation.max_windows_per_source=1",
        f"data.folder={home}/prepared",
    ]


def steady(words: list[str], home: Path) -> dict[str, Any]:
    """Train in this process and say where its time went, from the second step on."""
    arguments = read_point(own_words(words, STEPS, home))
    recipe = compose_recipe(arguments)
    folder = create_run_folder(recipe, home / "run")
    folder.write_json("data.json", prepare_data(recipe, arguments.site))
    clock = CallTimer()
    plain = MeshEngine.step, BatchThread.result
    MeshEngine.step = clock.timed("step", plain[0])  # type: ignore[method-assign]  # a stopwatch
    BatchThread.result = clock.timed("batch", plain[1])  # type: ignore[method-assign]  # a stopwatch
    try:
        fit(folder, recipe)
    finally:
        MeshEngine.step, BatchThread.result = plain  # type: ignore[method-assign]  # as before
    whole = clock.ends[-1] - clock.ends[0]
    inside, loading = (sum(clock.seconds[name][1:]) for name in ("step", "batch"))
    return {
        "steps": len(clock.ends) - 1,
        "whole_seconds": whole,
        "step_seconds": inside,
        "outside_fraction": 1 - inside / whole,
        "loading_fraction": loading / whole,
        "device": recipe.cluster.device,
        "tokens_per_step": recipe.budget.global_batch_tokens,
    }


def train_by_command(words: Sequence[str], run: Path) -> tuple[float, list[dict[str, Any]]]:
    """Train by the command; return the moment of its start, and what its steps noted."""
    began = time.time()
    command = [sys.executable, "run.py", *words, f"run={run}"]
    subprocess.run(command, check=True, cwd=ROOT, env=python_environment(), capture_output=True)
    return began, [one for one in read_lines(run / "metrics.jsonl") if one["kind"] == "step"]


def to_the_first_step(words: list[str], home: Path) -> dict[str, Any]:
    """Start the command some times, on data that are prepared already."""
    firsts, imports = [], []
    for number in range(STARTS):
        began, steps = train_by_command(own_words(words, 2, home), home / f"start-{number}")
        firsts.append(steps[0]["time"] - began)
        began = time.time()
        program = [sys.executable, "-c", IMPORTS]
        subprocess.run(program, check=True, cwd=ROOT, env=python_environment())
        imports.append(time.time() - began)
    return {"first_step_seconds": firsts, "imports_seconds": imports}


def compiled_beside_eager(words: list[str], home: Path) -> dict[str, Any]:
    """Train by the command in turns, with layers compiled and without, evaluation and all.

    A run's rate is its median step's, after the first ones; those have the compiler's time.
    """
    rates: dict[str, list[float]] = {"layers": [], "none": []}
    firsts: dict[str, list[float]] = {"layers": [], "none": []}
    counted: dict[str, Any] = {}
    for number in range(ROUNDS):
        for kind, kept in rates.items():
            run = home / f"{kind}-{number}"
            own = (*own_words(words, ROUND_STEPS, home), f"parallelism.compile={kind}")
            began, steps = train_by_command(own, run)
            kept.append(
                statistics.median(one["tokens_per_second"] for one in steps[WARM_STEPS:])
            )
            firsts[kind].append(steps[0]["time"] - began)
            counted[kind] = json.loads((run / "results.json").read_text("utf-8"))["compiler"]
    return {
        "compiled_by_eager": paired_ratio(rates["layers"], rates["none"]),
        "tokens_per_second": rates,
        "compiled_first_step_seconds": firsts,
        "compiler": counted,
    }


def ratios_of(result: dict[str, Any]) -> list[Ratio]:
    """Set the start and the parts of the run's time against limits, compiled against eager."""
    first = statistics.median(result["first_step_seconds"])
    parts = {
        "time outside steps": (result["outside_fraction"], MOST_OUTSIDE),
        "time of reading batches": (result["loading_fraction"], MOST_LOADING),
    }
    return [
        Ratio(
            "start until the first step, median",
            "a limit",
            first,
            at_most=MOST_FIRST_SECONDS,
            unit="s",
        ),
        *(
            Ratio(case, "the run's time", 100 * x, at_most=100 * most, unit="%")
            for case, (x, most) in parts.items()
        ),
        Ratio(
            "compiled layers, tokens/s", "eager layers", **interval(result["compiled_by_eager"])
        ),
    ]


def main(words: list[str]) -> int:
    """Measure, and keep the result."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        found = {**steady(words, home), **to_the_first_step(words, home)}
        found |= compiled_beside_eager(words, home)
    found |= circumstances(
        peer="our limits; of compiled layers, the same run without the compiler",
        convention="wall clock; outside is the time between the engine's steps; starts one "
        "after another, on prepared data, until the first step is noted; compiled and eager "
        "runs of the command in turns, a run's rate that of its median step",
        shape={
            "recipe": words,
            "steps": found["steps"],
            "tokens_per_step": found["tokens_per_step"],
            "starts": STARTS,
            "compiled_rounds": ROUNDS,
            "compiled_steps": ROUND_STEPS,
            "threads": torch.get_num_threads(),
        },
    )
    return keep_result("whole_run", found, ratios_of(found))


if __name__ == "__main__":
    enter(main)
