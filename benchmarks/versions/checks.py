"""Checks of an environment: a run, its resumption, parity, the tests of torch code."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.program import run_program
from benchmarks.pytest_report import run_pytest
from benchmarks.results_store import ROOT
from benchmarks.versions.environments import TorchEnvironment
from components.run.history import read_lines
from components.terminal import log_line

STEPS, SAVED_STEPS, STEP_TOKENS = 12, 6, 1_024
RUN = (
    "budget.ramp_up=none",
    f"budget.global_batch_tokens={STEP_TOKENS}",
    f"budget.total_tokens={STEPS * STEP_TOKENS}",
    f"checkpoint.every_tokens={SAVED_STEPS * STEP_TOKENS}",
    f"evaluation.every_tokens={STEPS * STEP_TOKENS}",
    "evaluation.max_windows_per_source=2",
    # The usual text of miniatures differs between versions of Python.
    f"data.sources={{eu: {{files: ['{ROOT}/corpora/eu24/*.txt']}}}}",
    "data.shares={eu: 1.0}",
    "tokenizer.vocab_size=768",
)
LAYOUTS = ("{tensor: 2}", "{pipeline: 2}")
TESTED_PACKAGES = (
    *("model", "distributed", "engine", "train", "checkpoint"),
    *("optim", "dryrun", "torch_internals"),
)
PARTS = ("loss", "gradient_norm", "gradient", "weight")

ResultFields = dict[str, Any]


def train_miniature(environment: TorchEnvironment, recipe: str, run: Path) -> list[float]:
    """Train the miniature of ``recipe=NAME``; return its losses in nats per token."""
    _run_program(environment, run.parent, recipe, *RUN, f"run={run}")
    return read_losses(run)


def resume_copy(environment: TorchEnvironment, run: Path, copy: Path) -> list[float]:
    """Copy a run up to its first checkpoint and resume the copy; return its losses."""
    shutil.copytree(run, copy)
    (copy / "results.json").unlink()
    for checkpoint in sorted((copy / "checkpoints").glob("tokens-*"))[1:]:
        shutil.rmtree(checkpoint)
    for name in ("metrics.jsonl", "events.jsonl"):
        lines = (copy / name).read_text("utf-8").splitlines(keepends=True)
        saved = [line for line in lines if json.loads(line)["step"] <= SAVED_STEPS]
        (copy / name).write_text("".join(saved), "utf-8")
    _run_program(environment, copy.parent, f"resume={copy}")
    return read_losses(copy)


def read_losses(run: Path) -> list[float]:
    """Read the loss of every step."""
    lines = read_lines(run / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "step"]


def prove_layouts(environment: TorchEnvironment, recipe: str, home: Path) -> list[ResultFields]:
    """Compare tensor ranks and a pipeline with one process, in float64."""
    layouts = f"layouts=[{', '.join(LAYOUTS)}]"
    words = (recipe, "action=parity", layouts, "output=json")
    proofs = json.loads(_run_program(environment, home, *words))["layouts"]
    return [
        {
            "label": proof["label"],
            "holds": proof["holds"],
            **{part: proof[part]["largest_relative_difference"] for part in PARTS},
        }
        for proof in proofs
    ]


def run_tests(environment: TorchEnvironment) -> ResultFields:
    """Run the tests of the packages that use torch; return the counts and the failures."""
    start = time.perf_counter()
    folders = [f"tests/components/{name}" for name in TESTED_PACKAGES]
    words = [*folders, "-m", "not gpu and not long and not cluster"]
    report = run_pytest(environment.program, words)
    failed = [entry["test"] for kind in ("failure", "error") for entry in report[kind]]
    return {
        "passed": report["passed"],
        "skipped": len(report["skipped"]),
        "failed": len(failed),
        "failures": failed,
        "seconds": round(time.perf_counter() - start),
    }


def _run_program(environment: TorchEnvironment, home: Path, *words: str) -> str:
    """Run the program in ``home`` on one thread, which fixes the order of sums."""
    log_line(f"{environment.name}: {' '.join(words)[:100]}")
    one_thread = {"OMP_NUM_THREADS": "1"}
    return run_program(*words, home=home, python=environment.program, environment=one_thread)
