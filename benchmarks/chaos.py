"""Break a run in every way that can be rehearsed; it must end as if nothing had been.

    python -m benchmarks.chaos [FAULT ...]

A miniature trains on four gloo ranks, tensor 2 x data 2 and pipeline 2 x data 2. For each kind
of fault of ``guard.inject`` a run meets it three times, at random steps on random ranks. Its
last weights must be, bit for bit, those of a run that nothing struck; where the rule is to
leave out bad data, those of a run that was told so from the start. Nobody helps: a run that
needs a person fails here. A hang must be found within ``watchdog.step_seconds`` and two
seconds more. Exit status 1 if one does not hold.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from benchmarks.machine import machine
from components.life.journal import read_lines
from components.spec.guard import Injection
from tests.life.conftest import TINY, command, environment

RESULTS = Path(__file__).parent / "results" / "chaos.json"
STEPS, FIRST, TIMES, STEP_SECONDS = 24, 10, 3, 3.0
LATE_SECONDS = 2.0  # in which a hang is found, after its limit
LAYOUTS = {
    "tensor 2 x data 2": ("parallelism.tensor=2", "parallelism.data=2"),
    "pipeline 2 x data 2": ("parallelism.pipeline=2", "parallelism.data=2"),
}
# What a fault needs to be told beside rank and step; a new kind of fault is added here.
DETAILS: dict[str, tuple[dict[str, Any], ...]] = {
    "nan": ({},),
    "bit_flip": ({"bit": 12},),
    "kill": ({},),
    "hang": ({"how": "sleeps"}, {"how": "holds"}),
    "slow_rank": ({"seconds": 0.05, "steps": 4},),
    "spike": ({},),
}
OWN = {
    "budget.total_tokens": STEPS * 512,
    "checkpoint.every_tokens": 4 * 512,
    "evaluation.every_tokens": STEPS * 512,
    "parallelism.microbatch_sequences": 2,
    "watchdog.step_seconds": STEP_SECONDS,
    "watchdog.every_steps": 2,
    "watchdog.replicas_every_steps": 1,
    "watchdog.restarts": TIMES,
    "cluster.ranks": 4,
}
# Spikes go by the gradient's norm, whose rule needs some steps to have gone before.
SPIKES = (
    "guard.gradient_norm_spike={action: skip, most: 9, within_tokens: 1_000_000, "
    "window_steps: 8, deviations: 7.0}"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one run met, and how it ended; ``late_seconds`` is the longest after the limit."""

    layout: str
    fault: str
    moments: list[tuple[int, int]]
    same_weights: bool
    restarts: int
    left_out: int
    longest_restart_seconds: float
    late_seconds: float | None
    seconds: float

    @property
    def holds(self) -> bool:
        return self.same_weights and (self.late_seconds or 0.0) <= LATE_SECONDS


def kinds() -> list[str]:
    """Name every kind of fault that a recipe may inject."""
    union = get_args(get_args(Injection)[0])[0]
    return [get_args(kind.model_fields["fault"].annotation)[0] for kind in get_args(union)]


def train(run: Path, words: Sequence[str]) -> float:
    """Run the program to its end and return its seconds.

    Raises:
        RuntimeError: it fails, with what it said last.
    """
    tiny = [word for word in TINY if word.partition("=")[0] not in OWN]
    own = [f"{key}={value}" for key, value in OWN.items()]
    began = time.perf_counter()
    done = subprocess.run(
        command(*tiny, *own, *words, f"run={run}", f"data.folder={run.parent}/prepared"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{run}: exit status {done.returncode}\n{done.stderr[-4_000:]}")
    return time.perf_counter() - began


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of the last checkpoint, the optimizer's too."""
    newest = max((run / "checkpoints").glob("tokens-*"))
    return {
        f"{file.name} {name}": tensor
        for file in sorted(newest.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def are_equal(one: Path, other: Path) -> bool:
    """Compare the last checkpoints of two runs bit for bit."""
    ours, theirs = last_weights(one), last_weights(other)
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def faults_of(kind: str, *, seed: str) -> list[dict[str, Any]]:
    """Draw three steps and ranks; a kind with several details takes them in turn."""
    draw = random.Random(seed)
    steps = sorted(draw.sample(range(FIRST, STEPS), TIMES))
    details = DETAILS[kind]
    return [
        {"fault": kind, "rank": draw.randrange(4), "step": step, **details[turn % len(details)]}
        for turn, step in enumerate(steps)
    ]


def strike(home: Path, layout: str, kind: str, undisturbed: Path) -> Row:
    """Let one run meet a kind of fault three times."""
    faults = faults_of(kind, seed=f"{layout} {kind}")
    run = home / f"{layout}-{kind}".replace(" ", "-")
    extra = (SPIKES,) if kind == "spike" else ()
    inject = f"guard.inject={json.dumps(faults)}".replace('"', "")
    seconds = train(run, [*LAYOUTS[layout], *extra, inject])
    events = read_lines(run / "journal.jsonl")
    windows = [each["evidence"]["window"] for each in events if each["kind"] == "skip"]
    expected = undisturbed
    if windows:
        expected = home / f"{run.name}-told"
        train(expected, [*LAYOUTS[layout], *extra, f"data.skip={json.dumps(windows)}"])
    restarts = [each for each in events if each["kind"] == "restart"]
    return Row(
        layout=layout,
        fault=kind,
        moments=[(fault["step"], fault["rank"]) for fault in faults],
        same_weights=are_equal(run, expected),
        restarts=len(restarts),
        left_out=len(windows),
        longest_restart_seconds=max((each["seconds"] for each in restarts), default=0.0),
        late_seconds=lateness(events),
        seconds=seconds,
    )


def lateness(events: Sequence[dict[str, Any]]) -> float | None:
    """Return by how much the slowest hang was found after its limit, from when it was fired."""
    found = []
    for place, event in enumerate(events):
        if event["kind"] == "rehearsal" and event["evidence"]["fault"] == "hang":
            hang = next(one for one in events[place:] if one["kind"] == "hang")
            found.append(hang["time"] - event["time"] - STEP_SECONDS)
    return max(found, default=None)


def strikes(home: Path, asked: Sequence[str]) -> Iterator[Row]:
    """Go through all layouts and kinds of faults, or those that are asked for."""
    for layout, words in LAYOUTS.items():
        undisturbed = home / f"{layout}-undisturbed".replace(" ", "-")
        train(undisturbed, words)
        for kind in asked or kinds():
            yield strike(home, layout, kind, undisturbed)


def main() -> int:
    """Strike, print the table, keep the results, and say whether all hold."""
    console, rows = Console(width=120), []
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        for row in strikes(home, sys.argv[1:]):
            rows.append(row)
            word = "holds" if row.holds else f"FAILS: {row}"
            console.print(f"{row.layout}, {row.fault}: {word}")
    finally:
        shutil.rmtree(home)
    table = Table("layout", "fault", "(step, rank)", "same weights", "restarts", "left out")
    table.add_column("longest restart, s")
    table.add_column("found late by, s")
    for row in rows:
        late = "" if row.late_seconds is None else f"{row.late_seconds:.2f}"
        moments = " ".join(map(str, row.moments))
        same = "yes" if row.same_weights else "NO"
        counts = (str(row.restarts), str(row.left_out))
        table.add_row(
            row.layout,
            row.fault,
            moments,
            same,
            *counts,
            f"{row.longest_restart_seconds:.1f}",
            late,
        )
    console.print(table)
    if not sys.argv[1:]:
        tree = {
            "convention": "wall clock; a restart is from the first error to the first step",
            "rows": [asdict(row) for row in rows],
            "machine": machine(),
            "versions": {"torch": torch.__version__},
        }
        RESULTS.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
