"""Proof on this machine that layouts of a recipe compute the same as one process.

The real code trains the same ten steps twice: with gloo ranks in the recipe's layout, and with
a single process that reads the same microbatches in the same order. In float64 a difference is
a bug and not rounding; a second pair of runs in float32 is only reported. DeepSpeed has no
float64: its layouts are judged in float32 against the mesh engine.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from components.child_process import python_environment
from components.config.check import change_recipe
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.packing import pack_sources
from components.data.token_file import write_token_file
from components.fault_tolerance.failures import FIRST_FAILURE
from components.parity.compare import (
    DOUBLE,
    SINGLE,
    Comparison,
    Tolerances,
    compare_losses,
    compare_records,
    read_records,
)
from components.run.folder import create_run_folder
from components.terminal import log_line

RANK = ("-m", "components.parity.rank")
JUDGED, ROUNDED = "float64", "float32"
_TOLERANCES = {JUDGED: DOUBLE, ROUNDED: SINGLE}
# Without this limit, a rank that waits for a missing message would wait for half an hour.
MOST_SECONDS = 600
_SECONDS_TO_STOP = 20  # torchrun terminates its ranks and kills them after half of this time
_ERROR = re.compile(r"^(?:\[rank\d+\]:)? *[\w.]+(?:Error|Exception)\b.*", re.MULTILINE)
_SECONDARY = re.compile(r"ChildFailedError|Connection closed|Connection reset")
_ALONE = ("data", "data_shard", "tensor", "pipeline", "expert", "context", "stages_per_rank")

_WINDOWS = 16  # per source: some sources are read more than once
_EOD_ID = 0


@dataclass(frozen=True, kw_only=True)
class ParityProof:
    """Parity proof of one layout; ``comparison`` is None if its ranks failed."""

    recipe: Recipe
    comparison: Comparison | None
    float32_loss_difference: float | None
    failure: str
    seconds: float

    @property
    def is_proven(self) -> bool:
        return self.comparison is not None and self.comparison.is_within_tolerance

    @property
    def compute_dtype(self) -> str:
        """The dtype in which the layout was judged."""
        return judged_in(self.recipe)

    @property
    def dtype_tolerances(self) -> Tolerances:
        return _TOLERANCES[self.compute_dtype]


class RanksError(Exception):
    """The started processes failed; ``log`` is their whole output."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Prover:
    """Prover: runs layouts and their references below ``folder``; equal references run once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[str, Path] = {}

    def prove_layout(self, recipe: Recipe) -> ParityProof:
        """Run and compare one layout in the dtype in which it is judged."""
        began = time.perf_counter()
        comparison, rounding, failure = None, None, ""
        judged, ranks = judged_in(recipe), recipe.cluster.ranks
        precisions = (judged,) if judged == ROUNDED else (judged, ROUNDED)
        try:
            reference, layout = (
                self._reference(recipe, precisions),
                self._run(recipe, precisions),
            )
            pairs = {
                precision: (
                    read_records(reference / precision, 1)[0],
                    read_records(layout / precision, ranks),
                )
                for precision in precisions
            }
            comparison = compare_records(*pairs[judged], _TOLERANCES[judged])
            if judged != ROUNDED:
                rounding = compare_losses(*pairs[ROUNDED]).difference
        except RanksError as error:
            failure = str(error)
            log_line(error.log)
        return ParityProof(
            recipe=recipe,
            comparison=comparison,
            float32_loss_difference=rounding,
            failure=failure,
            seconds=time.perf_counter() - began,
        )

    def _reference(self, recipe: Recipe, precisions: Sequence[str]) -> Path:
        reference = to_single_process(recipe)
        key = json.dumps([reference.model_dump(mode="json"), precisions], sort_keys=True)
        if key not in self._references:
            self._references[key] = self._run(reference, precisions)
        return self._references[key]

    def _run(self, recipe: Recipe, precisions: Sequence[str]) -> Path:
        ranks = recipe.cluster.ranks
        log_line(f"{ranks} ranks" if ranks > 1 else "one process, for reference")
        home = self._folder / f"{len(list(self._folder.iterdir())):03d}-{ranks}-ranks"
        draw_data(recipe, home / "data")
        for precision in precisions:
            run = create_run_folder(in_precision(recipe, precision), home / precision)
            run.write_json("data.json", {"folder": str(home / "data")})
        paths = [str(home / precision) for precision in precisions]
        start_ranks([*RANK, *paths], ranks, home / "ranks.log")
        return home


def to_single_process(recipe: Recipe) -> Recipe:
    """Return the recipe on one process, with the same microbatches, recomputation and math."""
    tree = recipe.model_dump(mode="json", include={"parallelism", "cluster"})
    parallelism = tree["parallelism"] | dict.fromkeys(_ALONE, 1)
    parallelism |= {"zero": 0, "sequence_parallel": False, "schedule": "1f1b"}
    parallelism |= {"engine": "mesh", "offload_optimizer": False}
    parallelism |= {"expert_dispatch": "all_gather", "expert_overlap": 1, "expert_aware": True}
    parallelism |= {"expert_capacity_factor": None}
    tree["parallelism"] = parallelism
    tree["cluster"] |= {"ranks": 1, "nodes": 1, "devices_per_node": 1}
    return change_recipe(recipe, tree)


def judged_in(recipe: Recipe) -> str:
    """Return the dtype in which a layout is judged."""
    return ROUNDED if recipe.parallelism.engine == "deepspeed" else JUDGED


def in_precision(recipe: Recipe, precision: str) -> Recipe:
    """Return the recipe with one dtype for all computation, and without step guards."""
    tree = recipe.model_dump(mode="json", include={"precision", "guard"})
    tree["precision"] |= dict.fromkeys(("compute", "accumulate", "reduce"), precision)
    tree["guard"] |= dict.fromkeys(("non_finite", "loss_spike", "gradient_norm_spike"), "none")
    return change_recipe(recipe, tree)


def start_ranks(program: Sequence[str], ranks: int, log: Path) -> None:
    """Run a program, under torchrun for several ranks; RanksError on failure or timeout."""
    command = [sys.executable, *program]
    logs = log.with_suffix("")
    if ranks > 1:
        agent = ["-m", "components.train.agent", str(logs), str(ranks), "0"]
        command = [sys.executable, *agent, *program]
    variables = {
        "OMP_NUM_THREADS": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SECONDS_TO_STOP // 2),
    }
    environment = python_environment(os.environ | variables)
    # On SIGTERM, this process first stops its ranks, which have their own sessions.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(MOST_SECONDS)
            status = f"exit status {code}" if code else ""
        except subprocess.TimeoutExpired:
            status = f"not finished within {MOST_SECONDS} seconds"
        finally:
            _stop(process)
            signal.signal(signal.SIGTERM, before)
    if status:
        log_text = log.read_text("utf-8", errors="replace")
        if (logs / FIRST_FAILURE).exists():
            failure = json.loads((logs / FIRST_FAILURE).read_text("utf-8"))
            log_text += f"{failure['traceback']}{failure['message']}\n"
        raise RanksError(f"{status}: {_cause(log_text)}", log_text)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a running process, then kill it; torchrun terminates its own ranks."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(log: str) -> str:
    """Find the root error in a log: what a rank raised, not lost connections to that rank."""
    raised = [line.strip() for line in _ERROR.findall(log)]
    primary = [line for line in raised if not _SECONDARY.search(line)]
    return next(iter([*primary, *raised, *log.splitlines()[-1:]]), "the log is empty")


def draw_data(recipe: Recipe, folder: Path) -> None:
    """Write random token files and their manifest, with the order of samples of a real run."""
    folder.mkdir(parents=True)
    vocab_size = recipe.tokenizer["vocab_size"]
    tokens = _WINDOWS * recipe.budget.sequence_length + 1
    sources = {}
    for name in recipe.data.source_names:
        train, held_out = (
            write_token_file(
                folder / f"{name}.{part}.bin",
                _documents(f"{recipe.budget.seed}/{name}/{part}", tokens, recipe),
                eod_id=_EOD_ID,
                vocab_size=vocab_size,
            )
            for part in ("train", "held_out")
        )
        sources[name] = SourceRecord(
            inputs=(), documents=train.documents, train=(train,), held_out=(held_out,)
        )
    tokenizer = TokenizerRecord(to_plain(recipe.tokenizer), (), vocab_size, _EOD_ID)
    manifest = Manifest("drawn", tokenizer, recipe.data.held_out_fraction, sources)
    manifest.save_manifest(folder)
    for cut in recipe.token_clock.list_sample_cuts():
        if cut.packed:
            pack_sources(folder, manifest, recipe.data.source_names, cut.sequence_length)


def _documents(key: str, tokens: int, recipe: Recipe) -> Iterator[list[int]]:
    """Draw documents of about one window each, with at least ``tokens`` tokens in total.

    Small ids are common and large ones rare, as in text, so the model can learn something.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest))
    vocab_size, length = recipe.tokenizer["vocab_size"], recipe.budget.sequence_length
    while tokens > 0:
        size = int(generator.integers(1, 2 * length))
        yield (generator.random(size) ** 3 * vocab_size).astype(int).tolist()
        tokens -= size + 1
