"""How much time does a run spend outside its steps, and until its first step?

The recipe's miniature trains on its prepared data in this process, with guards, watchdog,
metrics and display. After the first step, the time of the engine's steps (forward, backward,
averaging, checks, update) and of reading batches is compared with the whole time. Evaluations
and checkpoints are at the end and are not included, because recipes set their intervals. The
time to the first step is measured for the command, from its start until the record of the first
step; imports are also timed alone. The first start may read programs from the disk; all starts
are saved, and the target applies to their median. Compiled and eager runs of the command
alternate.

    python -m benchmarks.training.whole_run recipe=NAME [key=value ...]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.entry import run_script
from benchmarks.program import run_program
from benchmarks.ratios import Ratio, paired_ratio, save_benchmark, to_interval
from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from command.prepared_data import prepare_data
from components.child_process import python_environment
from components.engine.mesh_engine import MeshEngine
from components.run.folder import create_run_folder
from components.run.history import read_lines
from components.train.fit import fit_phase
from components.train.prefetch import BatchThread

MOST_OUTSIDE, MOST_LOADING, MOST_FIRST_SECONDS = 0.03, 0.02, 12.0
STEPS, STARTS = 100, 3
ROUNDS, ROUND_STEPS, WARM_STEPS = 6, 20, 4
IMPORTS = "import components.train.fit"
TimeSpan = tuple[float, float]  # start and end


def time_calls(function: Callable[..., Any], spans: list[TimeSpan]) -> Callable[..., Any]:
    """Return the function; each call appends its start and its end to ``spans``."""

    def timed_call(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **keywords)
        finally:
            spans.append((start, time.perf_counter()))

    return timed_call


def run_words(words: list[str], steps: int, home: Path) -> list[str]:
    """Return arguments of a run of ``steps`` that evaluates and saves only at its end."""
    tokens = compose_recipe(read_point(words)).budget.global_batch_tokens * steps
    ends = ("budget.total_tokens", "evaluation.every_tokens", "checkpoint.every_tokens")
    return [
        *words,
        *(f"{key}={tokens}" for key in ends),
        "evaluation.max_windows_per_source=1",
        f"data.folder={home}/prepared",
    ]


def measure_overhead(words: list[str], home: Path) -> dict[str, Any]:
    """Train in this process; return the shares of its time, from the second step on."""
    arguments = read_point(run_words(words, STEPS, home))
    recipe = compose_recipe(arguments)
    folder = create_run_folder(recipe, home / "run")
    folder.write_json("data.json", prepare_data(recipe, arguments.site))
    steps: list[TimeSpan] = []
    batches: list[TimeSpan] = []
    with (
        patch.object(MeshEngine, "step", time_calls(MeshEngine.step, steps)),
        patch.object(BatchThread, "step_batch", time_calls(BatchThread.step_batch, batches)),
    ):
        fit_phase(folder, recipe)
    whole = steps[-1][1] - steps[0][1]
    inside, loading = (sum(end - start for start, end in s[1:]) for s in (steps, batches))
    return {
        "steps": len(steps) - 1,
        "whole_seconds": whole,
        "step_seconds": inside,
        "outside_fraction": 1 - inside / whole,
        "loading_fraction": loading / whole,
        "device": recipe.cluster.device,
        "tokens_per_step": recipe.budget.global_batch_tokens,
    }


def train_by_command(
    words: Sequence[str], run: Path, **environment: str
) -> tuple[float, list[dict[str, Any]]]:
    """Train by the command; return its start time and the records of its steps."""
    start = time.time()
    run_program(*words, f"run={run}", environment=environment)
    return start, [row for row in read_lines(run / "metrics.jsonl") if row["kind"] == "step"]


def measure_starts(words: list[str], home: Path) -> dict[str, Any]:
    """Measure starts of the command on prepared data, and imports alone."""
    first_steps, imports = [], []
    for number in range(STARTS):
        start, steps = train_by_command(run_words(words, 2, home), home / f"start-{number}")
        first_steps.append(steps[0]["time"] - start)
        start = time.time()
        program = [sys.executable, "-c", IMPORTS]
        subprocess.run(program, check=True, cwd=ROOT, env=python_environment())
        imports.append(time.time() - start)
    return {"first_step_seconds": first_steps, "imports_seconds": imports}


def train_alternating(
    kinds: Mapping[str, Sequence[str]], words: Sequence[str], home: Path, *, warm_steps: int
) -> dict[str, list[dict[str, Any]]]:
    """Train runs of several kinds by the command, in rotating order.

    Return the rate of the median step, the seconds to the first step and the results of each
    run. The rate excludes the first steps, which include compilation.
    """
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    names = list(kinds)
    for number in range(ROUNDS):
        first = number % len(names)
        for kind in (*names[first:], *names[:first]):
            run = home / f"{kind}-{number}".replace(", ", "-")
            start, steps = train_by_command([*words, *kinds[kind]], run)
            runs[kind].append({
                "rate": statistics.median(s["tokens_per_second"] for s in steps[warm_steps:]),
                "first_seconds": steps[0]["time"] - start,
                "results": json.loads((run / "results.json").read_text("utf-8")),
            })
    return runs


def compare_compiled(words: list[str], home: Path) -> dict[str, Any]:
    """Train by the command with compiled and with eager layers."""
    kinds = {kind: (f"parallelism.compile={kind}",) for kind in ("layers", "none")}
    arguments = run_words(words, ROUND_STEPS, home)
    by_kind = train_alternating(kinds, arguments, home, warm_steps=WARM_STEPS)
    rates = {kind: [run["rate"] for run in runs] for kind, runs in by_kind.items()}
    return {
        "compiled_by_eager": paired_ratio(rates["layers"], rates["none"]),
        "tokens_per_second": rates,
        "compiled_first_step_seconds": {
            kind: [run["first_seconds"] for run in runs] for kind, runs in by_kind.items()
        },
        "compiler": {kind: runs[-1]["results"]["compiler"] for kind, runs in by_kind.items()},
    }


def ratios_of(result: dict[str, Any]) -> list[Ratio]:
    """Compare start and shares of the run's time with limits, and compiled with eager."""
    first = statistics.median(result["first_step_seconds"])
    compiled = to_interval(result["compiled_by_eager"])
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
            Ratio(case, "the run's time", 100 * share, at_most=100 * most, unit="%")
            for case, (share, most) in parts.items()
        ),
        Ratio("compiled layers, tokens/s", "eager layers", **compiled),
    ]


def main(words: list[str]) -> int:
    """Measure and save the result."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        result = {**measure_overhead(words, home), **measure_starts(words, home)}
        result |= compare_compiled(words, home)
    shape = {
        "recipe": words,
        "steps": result["steps"],
        "tokens_per_step": result["tokens_per_step"],
        "starts": STARTS,
        "compiled_rounds": ROUNDS,
        "compiled_steps": ROUND_STEPS,
        "threads": torch.get_num_threads(),
    }
    return save_benchmark("whole_run", shape, result, ratios_of(result))


if __name__ == "__main__":
    run_script(main)
