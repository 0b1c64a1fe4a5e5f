"""Runs that the same ranks train one after the other: their processes start once.

Each rank is ``python -m tests.life.together FOLDER [FOLDER ...]``.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.rendezvous import rendezvous

from command.begin_run import begin_run
from components.config.check import read_recipe
from components.run.folder import RunFolder
from components.train.fit import fit_phase
from tests.life.conftest import ROOT, environment


def begin(home: Path, name: str, *words: str) -> Path:
    """Create a run's folder and prepare its data."""
    with contextlib.chdir(home):
        return begin_run(home / name, *words)


def train_together(runs: Sequence[Path], ranks: int) -> None:
    """Train each run, from its newest checkpoint, in the same processes."""
    logs = runs[0].with_name(f"{runs[0].name}-ranks")
    words = [*(str(logs), str(ranks), "0"), *("-m", "tests.life.together", *map(str, runs))]
    agent = ("components.train.agent", *words) if ranks > 1 else tuple(words[-1 - len(runs) :])
    done = subprocess.run(
        [sys.executable, "-m", *agent],
        cwd=runs[0].parent,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    failure = logs / "first_failure.json"
    said = failure.read_text() if failure.exists() else ""
    assert done.returncode == 0, said + done.stderr[-4_000:]


def main(paths: Sequence[str]) -> None:
    rank, ranks = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    for path in paths:
        torch.compiler.reset()
        counters.clear()
        if ranks:
            # Under the keys of the run before, a rank would wait where nobody listens.
            store, _, _ = next(rendezvous("env://", rank, ranks))
            dist.init_process_group(
                "gloo", store=PrefixStore(path, store), rank=rank, world_size=ranks
            )
        folder = RunFolder(Path(path))
        fit_phase(folder, read_recipe(folder.recipe))


if __name__ == "__main__":
    main(sys.argv[1:])
