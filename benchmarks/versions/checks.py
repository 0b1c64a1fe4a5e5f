"""What is asked of an environment: a run, going on, parity, the tests of what uses torch."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.kept import ROOT
from benchmarks.versions.environments import TorchEnvironment
from components.child_process import python_environment
from components.run.history import read_lines
from components.terminal import say

STEPS, SAVED_STEPS, STEP_TOKENS = 12, 6, 1_024
RUN = (
    "budget.ramp_up=none",
    f"budget.global_batch_tokens={STEP_TOKENS}",
    f"budget.total_tokens={STEPS * STEP_TOKENS}",
    f"checkpoint.every_tokens={SAVED_STEPS * STEP_TOKENS}",
    f"evaluation.every_tokens={STEPS * STEP_TOKENS}",
    "evaluation.max_windows_per_source=2",
    # Texts of our own: the miniature's usual ones are of the Python that runs.
    f"data.sources={{eu: {{files: ['{ROOT}/corpora/eu24/*.txt']}}}}",
    "data.shares={eu: 1.0}",
    "tokenizer.vocab_size=768",
)
LAYOUTS = ("{tensor: 2}", "{pipeline: 2}")
ROOMS = (
    *("model", "distributed", "engine", "train", "checkpoint"),
    *("optim", "dryrun", "torch_internals"),
)
PARTS = ("loss", "gradient_norm", "gradient", "weight")

Found = dict[str, Any]


def train(environment: TorchEnvironment, recipe: str, run: Path) -> list[float]:
    """Train the miniature of ``recipe=NAME`` to its end; return its losses, in nats a token."""
    _program(environment, run.parent, recipe, *RUN, f"run={run}")
    return losses_of(run)


def go_on(environment: TorchEnvironment, stayed: Path, copy: Path) -> list[float]:
    """Resume what a kill after the first checkpoint would have left of a run; return losses."""
    shutil.copytree(stayed, copy)
    (copy / "results.json").unlink()
    for late in sorted((copy / "checkpoints").glob("tokens-*"))[1:]:
        shutil.rmtree(late)
    for name in ("metrics.jsonl", "journal.jsonl"):
        lines = (copy / name).read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["step"] <= SAVED_STEPS]
        (copy / name).write_text("".join(kept), "utf-8")
    _program(environment, copy.parent, f"resume={copy}")
    return losses_of(copy)


def losses_of(run: Path) -> list[float]:
    """Read every step's loss."""
    lines = read_lines(run / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "step"]


def prove(environment: TorchEnvironment, recipe: str, home: Path) -> list[Found]:
    """Compare tensor ranks and a pipeline with one process, in float64."""
    layouts = f"layouts=[{', '.join(LAYOUTS)}]"
    words = (recipe, "action=parity", layouts, "output=json")
    proofs = json.loads(_program(environment, home, *words))["layouts"]
    return [
        {
            "label": proof["label"],
            "holds": proof["holds"],
            **{part: proof[part]["largest_relative_difference"] for part in PARTS},
        }
        for proof in proofs
    ]


def test(environment: TorchEnvironment, home: Path) -> Found:
    """Run the tests of the rooms that use torch; count them, and name those that fail."""
    report, began = home / "tests.xml", time.perf_counter()
    folders = [f"tests/components/{room}" for room in ROOMS]
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *folders]
    done = _call(environment, ROOT, [*words, "-m", "not gpu and not long and not cluster"])
    if not report.exists():
        raise RuntimeError(f"{environment.name}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if _has(case, "failure", "error")]
    skipped = [case for case in cases if _has(case, "skipped")]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "skipped": len(skipped),
        "failed": len(failed),
        "failures": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
        "seconds": round(time.perf_counter() - began),
    }


def _has(case: ElementTree.Element, *kinds: str) -> bool:
    return any(case.find(kind) is not None for kind in kinds)


def _program(environment: TorchEnvironment, home: Path, *words: str) -> str:
    """Run the program in ``home``; return what it prints.

    Raises:
        RuntimeError: it fails; with what it said.
    """
    done = _call(environment, home, [str(ROOT / "run.py"), *words])
    if done.returncode:
        said = f"{environment.name}: {' '.join(words)}\n{done.stderr[-4_000:]}"
        raise RuntimeError(said)
    return done.stdout


def _call(
    environment: TorchEnvironment, home: Path, words: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    """Call an environment's Python on one thread, so that sums keep their order."""
    say(f"{environment.name}: {' '.join(words)[:100]}")
    return subprocess.run(
        [environment.program, *words],
        cwd=home,
        env=python_environment(os.environ | {"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
