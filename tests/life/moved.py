"""Train in one layout, go on in others: are the next losses those of the run that stayed?

    python -m tests.life.moved [RECIPE ...]

Each run trains to its end in its own layout. What a kill after the first checkpoint would have
left of it is copied and resumed in every other layout. Its losses must be those of the run that
stayed, and each step must read the same samples. Exit status 1 if one does not hold.
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.life.conftest import TINY, command, environment

# Relative: ranks add the same numbers of seven or sixteen digits in another order.
TOLERANCES = {"float32": 1e-6, "float64": 1e-12}
SAVED_STEPS, STEPS = 6, 10
STEP_TOKENS = 8 * 64
_OWN = {
    "parallelism.microbatch_sequences": 1,
    "budget.total_tokens": STEPS * STEP_TOKENS,
    "checkpoint.every_tokens": SAVED_STEPS * STEP_TOKENS,
    "evaluation.every_tokens": STEPS * STEP_TOKENS,
    "evaluation.max_windows_per_source": 8,
}
_ROOM = {"model.num_layers": 4, "model.attention.num_heads": 4}  # for four ranks on an axis
_ALONE = {"data": 1, "tensor": 1, "pipeline": 1}

Layout = dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """A run that stays in its layout, and the layouts that its checkpoint moves to."""

    recipe: str
    precision: str
    words: tuple[str, ...]
    layout: Layout
    targets: tuple[Layout, ...]


ORIGINS = (
    Origin(
        recipe="teuken7b",
        precision="float32",
        words=("model.attention.num_kv_heads=2",),
        layout={"data": 2, "tensor": 2, "pipeline": 2},
        targets=(
            {},
            {"data": 8, "tensor": 1, "pipeline": 1},
            {"data": 2, "tensor": 4, "pipeline": 1},
            _ALONE,
            {"data": 2, "context": 2, "tensor": 1, "pipeline": 1, "zero": 3},
            {**_ALONE, "data": 2, "engine": "deepspeed", "zero": 1},
        ),
    ),
    Origin(
        recipe="bloom560m",  # tied: in a V one rank has both ends
        precision="float32",
        words=("precision.loss_scale=none", "budget.ramp_up=none"),
        layout={"pipeline": 2, "schedule": "zbv", "stages_per_rank": 2},
        targets=(
            {},
            {"schedule": "dualpipev", "data": 2},
            {"schedule": "interleaved", "tensor": 2},
            {"pipeline": 1, "schedule": "1f1b", "stages_per_rank": 1},
        ),
    ),
    Origin(
        recipe="mula7b_a1b",
        precision="float64",  # float32's last digit can send a token to another expert
        words=("model.mlp.num_experts=8", "model.mlp.top_k=2"),
        layout={"data": 1, "expert": 4},
        targets=({}, {"expert": 1}, {"expert": 2}, {"data": 2, "expert": 2, "pipeline": 2}),
    ),
)


@dataclass(frozen=True)
class Row:
    """How close one layout came: relative differences of the first loss and of the worst."""

    origin: str
    target: str
    first: float
    worst: float
    same_samples: bool
    seconds: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.worst <= self.tolerance and self.same_samples


def train(home: Path, words: tuple[str, ...]) -> None:
    """Run the program to its end.

    Raises:
        RuntimeError: it fails; with what it said.
    """
    done = subprocess.run(
        command(*words),
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stderr[-4_000:]}")


def steps(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "step"]


def killed_copy(run: Path, copy: Path) -> Path:
    """Copy what a kill after the first checkpoint would have left of ``run``."""
    shutil.copytree(run, copy)
    (copy / "results.json").unlink()
    for late in sorted((copy / "checkpoints").glob("tokens-*"))[1:]:
        shutil.rmtree(late)
    for name in ("metrics.jsonl", "events.jsonl"):
        lines = (copy / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["step"] <= SAVED_STEPS]
        (copy / name).write_text("".join(kept))
    return copy


def begin(home: Path, origin: Origin) -> Path:
    """Train the run that stays."""
    run = home / f"{origin.recipe}-stayed"
    dtypes = {
        f"precision.{key}": origin.precision for key in ("compute", "accumulate", "reduce")
    }
    own = {**_OWN, **_ROOM, **dtypes, **keys(origin.layout)}
    common = [word for word in TINY if word.partition("=")[0] not in {"recipe", *own}]
    train(
        home,
        (
            f"recipe={origin.recipe}",
            *common,
            *(f"{key}={value}" for key, value in own.items()),
            *origin.words,
            f"run={run}",
        ),
    )
    return run


def keys(layout: Layout) -> Layout:
    return {f"parallelism.{name}": value for name, value in layout.items()}


def move(home: Path, origin: Origin, stayed: Path, target: Layout) -> Row:
    """Resume a copy under ``target``; compare its losses with those of the run that stayed."""
    words = tuple(f"{key}={value}" for key, value in keys(target).items())
    run = killed_copy(stayed, Path(tempfile.mkdtemp(dir=home)) / "run")
    began = time.perf_counter()
    train(home, (f"resume={run}", *words))
    seconds = time.perf_counter() - began
    found, expected = steps(run)[SAVED_STEPS:], steps(stayed)[SAVED_STEPS:]
    pairs = list(zip(found, expected, strict=True))
    differences = [
        math.inf if not math.isfinite(one["loss"]) else abs(one["loss"] / other["loss"] - 1)
        for one, other in pairs
    ]
    return Row(
        origin=f"{origin.recipe}, {origin.precision}, {named(origin.layout)}",
        target=named(target) if target else "the same",
        first=differences[0],
        worst=max(differences),
        same_samples=all(a["samples_digest"] == b["samples_digest"] for a, b in pairs),
        seconds=seconds,
        tolerance=TOLERANCES[origin.precision],
    )


def named(layout: Layout) -> str:
    """Name a layout by what is not 1."""
    parts = [
        f"{name} {value}" for name, value in layout.items() if value != 1 or name == "zero"
    ]
    return " x ".join(parts) or "one process"


def moves(home: Path, console: Console) -> Iterator[Row]:
    """Go through all origins and targets, saying each."""
    asked = sys.argv[1:]
    for origin in ORIGINS:
        if asked and origin.recipe not in asked:
            continue
        console.print(f"{origin.recipe}: training in {named(origin.layout)}")
        stayed = begin(home, origin)
        for target in origin.targets:
            if target.get("engine") == "deepspeed" and find_spec("deepspeed") is None:
                console.print("deepspeed is not installed: its row is left out")
                continue
            row = move(home, origin, stayed, target)
            console.print(f"  {row.target}: {row.worst:.1e} in {row.seconds:.0f} s")
            yield row


def main() -> int:
    """Move all, print the table, and say whether all hold."""
    console = Console()
    with tempfile.TemporaryDirectory() as home:
        rows = list(moves(Path(home), console))
    heads = ("saved in", "went on in", "next loss", f"worst of {STEPS - SAVED_STEPS}")
    table = Table(*heads, "same samples", "holds")
    for row in rows:
        words = ["yes" if flag else "NO" for flag in (row.same_samples, row.holds)]
        table.add_row(row.origin, row.target, f"{row.first:.1e}", f"{row.worst:.1e}", *words)
    console.print(table)
    allowed = ", ".join(f"{most:.0e} in {name}" for name, most in TOLERANCES.items())
    console.print(f"relative differences of the training loss; allowed: {allowed}")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
