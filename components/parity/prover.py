"""Prove on this machine that layouts of a recipe compute what one process computes.

The same ten steps are trained twice by the real path: by gloo ranks in the recipe's layout, and
by a single process that reads the same microbatches in the same order. Both compute in float64,
where a difference is a mistake and not rounding; a second pair in float32 is only reported.
DeepSpeed has no float64: its layouts are judged in float32 against the mesh engine.
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
from components.config.schema.types import thaw
from components.data.manifest import Manifest, SourceRecord, TokenizerRecord
from components.data.packing import pack_sources
from components.data.token_file import write_token_file
from components.fault_tolerance.failures import FIRST_FAILURE
from components.parity.compare import (
    DOUBLE,
    SINGLE,
    Comparison,
    Tolerances,
    compare,
    compare_losses,
    read_records,
)
from components.run.folder import create_run_folder
from components.terminal import say

RANK = ("-m", "components.parity.rank")
JUDGED, ROUNDED = "float64", "float32"
_TOLERANCES = {JUDGED: DOUBLE, ROUNDED: SINGLE}
# A rank that waits for a message nobody sends would wait for half an hour.
MOST_SECONDS = 600
_SECONDS_TO_STOP = 20  # torchrun asks its ranks to stop and kills them after half of it
_ERROR = re.compile(r"^(?:\[rank\d+\]:)? *[\w.]+(?:Error|Exception)\b.*", re.MULTILINE)
_SECONDARY = re.compile(r"ChildFailedError|Connection closed|Connection reset")
_ALONE = ("data", "data_shard", "tensor", "pipeline", "expert", "context", "stages_per_rank")

_WINDOWS = 16  # a source: some sources are read more than once
_EOD_ID = 0


@dataclass(frozen=True, kw_only=True)
class ParityProof:
    """What came out for one layout; without a comparison its ranks failed."""

    recipe: Recipe
    comparison: Comparison | None
    float32_loss_difference: float | None
    failure: str
    seconds: float

    @property
    def holds(self) -> bool:
        return self.comparison is not None and self.comparison.holds

    @property
    def precision(self) -> str:
        """Name the dtype in which the layout was judged."""
        return judged_in(self.recipe)

    @property
    def tolerances(self) -> Tolerances:
        return _TOLERANCES[self.precision]


class RanksError(Exception):
    """Processes that were started did not end well; ``log`` is all that they said."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Prover:
    """Run layouts and their references below ``folder``; equal references run once.

    A layout that is judged in float64 runs in float32 as well.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[str, Path] = {}

    def prove(self, recipe: Recipe) -> ParityProof:
        """Compare one layout; ``recipe`` is in the dtype in which it is judged."""
        began = time.perf_counter()
        comparison, rounding, failure = None, None, ""
        judged, ranks = judged_in(recipe), recipe.cluster.ranks
        precisions = (judged,) if judged == ROUNDED else (judged, ROUNDED)
        try:
            alone, together = self._reference(recipe, precisions), self._run(recipe, precisions)
            pairs = {
                one: (read_records(alone / one, 1)[0], read_records(together / one, ranks))
                for one in precisions
            }
            comparison = compare(*pairs[judged], _TOLERANCES[judged])
            if judged != ROUNDED:
                rounding = compare_losses(*pairs[ROUNDED]).difference
        except RanksError as error:
            failure = str(error)
            say(error.log)
        return ParityProof(
            recipe=recipe,
            comparison=comparison,
            float32_loss_difference=rounding,
            failure=failure,
            seconds=time.perf_counter() - began,
        )

    def _reference(self, recipe: Recipe, precisions: Sequence[str]) -> Path:
        alone = on_one_process(recipe)
        key = json.dumps([alone.model_dump(mode="json"), precisions], sort_keys=True)
        if key not in self._references:
            self._references[key] = self._run(alone, precisions)
        return self._references[key]

    def _run(self, recipe: Recipe, precisions: Sequence[str]) -> Path:
        ranks = recipe.cluster.ranks
        say(f"{ranks} ranks" if ranks > 1 else "one process, for reference")
        home = self._folder / f"{len(list(self._folder.iterdir())):03d}-{ranks}-ranks"
        draw_data(recipe, home / "data")
        for precision in precisions:
            run = create_run_folder(in_precision(recipe, precision), home / precision)
            run.write_json("data.json", {"folder": str(home / "data")})
        paths = [str(home / precision) for precision in precisions]
        start_ranks([*RANK, *paths], ranks, home / "ranks.log")
        return home


def on_one_process(recipe: Recipe) -> Recipe:
    """Undo the layout and keep the rest: microbatches, recomputation, mathematics."""
    tree = recipe.model_dump(mode="json", include={"parallelism", "cluster"})
    parallelism = tree["parallelism"] | dict.fromkeys(_ALONE, 1)
    parallelism |= {"zero": 0, "sequence_parallel": False, "schedule": "1f1b"}
    parallelism |= {"engine": "mesh", "offload_optimizer": False}
    parallelism |= {"expert_dispatch": "all_gather", "expert_overlap": 1, "expert_aware": True}
    parallelism |= {"expert_bound": None}
    tree["parallelism"] = parallelism
    tree["cluster"] |= {"ranks": 1, "nodes": 1, "devices_per_node": 1}
    return change_recipe(recipe, tree)


def judged_in(recipe: Recipe) -> str:
    """Choose the dtype in which a layout is judged."""
    return ROUNDED if recipe.parallelism.engine == "deepspeed" else JUDGED


def in_precision(recipe: Recipe, precision: str) -> Recipe:
    """Compute, accumulate and reduce in one dtype, and take every step whatever it gives."""
    tree = recipe.model_dump(mode="json", include={"precision", "guard"})
    tree["precision"] |= dict.fromkeys(("compute", "accumulate", "reduce"), precision)
    tree["guard"] |= dict.fromkeys(("non_finite", "loss_spike", "gradient_norm_spike"), "none")
    return change_recipe(recipe, tree)


def start_ranks(program: Sequence[str], ranks: int, log: Path) -> None:
    """Run a Python program, under torchrun if it has more than one rank, and wait.

    Raises:
        RanksError: it fails, or takes longer than any proof should.
    """
    command = [sys.executable, *program]
    logs = log.with_suffix("")
    if ranks > 1:
        agent = ["-m", "components.train.agent", str(logs), str(ranks), "0"]
        command = [sys.executable, *agent, *program]
    own = {
        "OMP_NUM_THREADS": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SECONDS_TO_STOP // 2),
    }
    environment = python_environment(os.environ | own)
    # Asked to end, this process ends its ranks first, which have sessions of their own.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(MOST_SECONDS)
            status = f"exit status {code}" if code else ""
        except subprocess.TimeoutExpired:
            status = f"no end within {MOST_SECONDS} seconds"
        finally:
            _stop(process)
            signal.signal(signal.SIGTERM, before)
    if status:
        said = log.read_text("utf-8", errors="replace")
        if (logs / FIRST_FAILURE).exists():
            failure = json.loads((logs / FIRST_FAILURE).read_text("utf-8"))
            said += f"{failure['traceback']}{failure['message']}\n"
        raise RanksError(f"{status}: {_cause(said)}", said)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what still runs; torchrun, asked to stop, ends its ranks itself."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _cause(log: str) -> str:
    """Find the error that says why: what a rank raised, not that the others lost it."""
    raised = [line.strip() for line in _ERROR.findall(log)]
    own = [line for line in raised if not _SECONDARY.search(line)]
    return next(iter([*own, *raised, *log.splitlines()[-1:]]), "nothing was said")


def draw_data(recipe: Recipe, folder: Path) -> None:
    """Write drawn token files for every share of ``recipe``, and their manifest.

    Files, manifest and so the order of the samples are those of a real run; only the tokens
    come from a generator, seeded by the recipe's seed and the source's name.
    """
    folder.mkdir(parents=True)
    vocab_size = recipe.tokenizer["vocab_size"]
    tokens = _WINDOWS * recipe.budget.sequence_length + 1
    sources = {}
    for name in recipe.data.names:
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
    tokenizer = TokenizerRecord(thaw(recipe.tokenizer), (), vocab_size, _EOD_ID)
    manifest = Manifest("drawn", tokenizer, recipe.data.held_out_fraction, sources)
    manifest.write(folder)
    for cut in recipe.clock.cuts():
        if cut.packed:
            pack_sources(folder, manifest, recipe.data.names, cut.sequence_length)


def _documents(key: str, tokens: int, recipe: Recipe) -> Iterator[list[int]]:
    """Draw documents of about a window, ``tokens`` or more in all.

    Small ids are common and large ones rare, as in text: there is something to learn.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = np.random.default_rng(int.from_bytes(digest))
    vocab_size, length = recipe.tokenizer["vocab_size"], recipe.budget.sequence_length
    while tokens > 0:
        size = int(generator.integers(1, 2 * length))
        yield (generator.random(size) ** 3 * vocab_size).astype(int).tolist()
        tokens -= size + 1
