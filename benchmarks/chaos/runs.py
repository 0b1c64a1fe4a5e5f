"""Run a chaos case and its reference without the fault, and compare their checkpoints.

Each run has its own ranks and agent, as with `action=train`. Runs share only imports.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from multiprocessing import set_forkserver_preload
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.chaos.cases import LAYOUTS, RANKS, SAVED_STEPS, STEP_SECONDS, STEPS, Draw
from benchmarks.results_store import ResultRow
from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.prepared_data import prepare_data
from components.run.folder import create_run_folder
from components.run.history import read_lines
from components.train.agent import run_ranks
from tests.life.conftest import TINY

LATE_SECONDS = 2.0  # longest delay of a hang's detection after its limit
OWN = {
    "budget.total_tokens": STEPS * 512,
    "checkpoint.every_tokens": SAVED_STEPS * 512,
    "checkpoint.keep": 3,
    "evaluation.every_tokens": STEPS * 512,
    "parallelism.microbatch_sequences": 2,
    "watchdog.step_seconds": STEP_SECONDS,
    "watchdog.every_steps": 2,
    "watchdog.replicas_every_steps": 1,
    "watchdog.restarts": 3,
    "cluster.ranks": RANKS,
}
# Kinds of events that show how a run handled a fault.
REACTIONS = {"hang", "replicas", "slow_rank", "restart", "damaged", "skip", "stop", "relaunch"}
CONTINUES = {"roll_back", "resume", "start"}
SKIPS = {"skip", "roll_back"}


class Runs:
    """Runs of one miniature in the folder ``home``; reference runs are trained once.

    ``own`` are the keys in which the miniature differs from the miniature of the tests.
    """

    def __init__(self, home: Path, own: Mapping[str, object] = OWN) -> None:
        self._home, self._own = home, own
        self._expected: dict[tuple[str, str], Path] = {}

    def inject(self, draw: Draw) -> ResultRow:
        """Run a case and compare its last checkpoint with the reference run.

        The row has the fault, and the run's reactions until the step was completed.
        """
        run = self._home / f"{len(list(self._home.iterdir()))}"
        faults = json.dumps(draw.faults).replace('"', "")
        words = [*LAYOUTS[draw.layout], *draw.case.words, f"guard.inject={faults}"]
        status = self.start(run, words)
        events = read_lines(run / "events.jsonl")
        same = status == 0 and are_equal(run, self._reference(draw.layout, events))
        late = lateness(events)
        return {
            "layout": draw.layout,
            "case": draw.case.name,
            "draw": draw.number,
            "step": draw.step,
            "moment": draw.moment,
            "rank": draw.rank,
            "status": status,
            "did": reactions(events),
            "recovery_seconds": recovery_seconds(run, events),
            "seconds_to_step": seconds_to_step(run, events),
            "hang_late_seconds": late,
            "same_weights": same,
            "holds": same and is_shown(draw, events) and (late or 0.0) <= LATE_SECONDS,
        }

    def _reference(self, layout: str, events: Sequence[dict[str, Any]]) -> Path:
        """Train without the fault, and without the data that the other run skipped."""
        windows = [event["evidence"]["window"] for event in events if event["kind"] in SKIPS]
        skipped = json.dumps(windows)
        if (layout, skipped) not in self._expected:
            run = self._home / f"expected-{len(self._expected)}"
            words = [*LAYOUTS[layout], *([f"data.skip={skipped}"] if windows else [])]
            if status := self.start(run, words):
                raise RuntimeError(f"{run}: exit status {status} without a fault")
            self._expected[layout, skipped] = run
        return self._expected[layout, skipped]

    def start(self, run: Path, words: Sequence[str]) -> int:
        """Train a new run and return the exit status of its agent."""
        tiny = [word for word in TINY if word.partition("=")[0] not in self._own]
        own = [f"{key}={value}" for key, value in self._own.items()]
        places = (f"run={run}", f"data.folder={self._home}/prepared")
        arguments = read_point([*tiny, *own, *words, *places])
        recipe = compose_recipe(arguments)
        data = prepare_data(recipe, arguments.site)
        create_run_folder(recipe, run).write_json("data.json", data)
        program = ["-m", "components.train", str(run)]
        restarts = recipe.watchdog.restarts
        return run_ranks(run / "ranks", recipe.cluster.ranks, restarts, program)


@contextmanager
def preloaded_ranks(log: Path) -> Iterator[None]:
    """Import modules once for the ranks of all runs, and write their output to a file.

    Ranks are forks of one server process. `run_ranks` alone would start a server for each run,
    which takes most of the time of such small runs.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"}
    torch.set_num_threads(1)
    descriptors = (sys.stdout.fileno(), sys.stderr.fileno())
    before = [os.dup(descriptor) for descriptor in descriptors]
    with log.open("wb") as output:
        for descriptor in descriptors:
            os.dup2(output.fileno(), descriptor)
    set_forkserver_preload(["__main__", "components.train.fit"])
    ensure_running()
    try:
        yield
    finally:
        for saved, descriptor in zip(before, descriptors, strict=True):
            os.dup2(saved, descriptor)


def last_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of the last checkpoint, including the optimizer's."""
    newest = max((run / "checkpoints").glob("tokens-*"))
    return {
        f"{newest.name} {file.name} {name}": tensor
        for file in sorted(newest.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def are_equal(run: Path, reference: Path) -> bool:
    """Compare the last checkpoints of two runs bit for bit."""
    ours, theirs = last_tensors(run), last_tensors(reference)
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def is_shown(draw: Draw, events: Sequence[dict[str, Any]]) -> bool:
    """Return whether the event log shows the expected event, for the step of the fault."""
    if draw.case.shows in SKIPS:
        shown = [event for event in events if event["kind"] == draw.case.shows]
        return draw.step in [event["evidence"]["bad_step"] for event in shown]
    return any(reaction.startswith(draw.case.shows) for reaction in reactions(events))


def reactions(events: Sequence[dict[str, Any]]) -> list[str]:
    """List the run's reactions after the first fault, and the step at which it continued."""
    later = events[events.index(first_fault(events)) :]
    return list(dict.fromkeys(chain.from_iterable(map(reactions_to, later))))


def reactions_to(event: dict[str, Any]) -> list[str]:
    """Return the reaction that an event records, if any."""
    kind = event["kind"]
    if kind in CONTINUES:
        return [f"{kind} at {event['step']}"]
    if kind == "checkpoint":
        return [f"waits ({reason})" for reason in event["evidence"]["reasons"]]
    return [kind] if kind in REACTIONS else []


def first_fault(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the event of the first injected fault."""
    return next(event for event in events if event["kind"] == "rehearsal")


def recovery_seconds(run: Path, events: Sequence[dict[str, Any]]) -> float | None:
    """Return the seconds from the first fault to the next completed step, new or repeated."""
    fault = first_fault(events)
    later = [step["time"] for step in steps_of(run) if step["time"] > fault["time"]]
    return float(min(later) - fault["time"]) if later else None


def seconds_to_step(run: Path, events: Sequence[dict[str, Any]]) -> float | None:
    """Return the seconds from the first fault to the last completion of its step."""
    fault = first_fault(events)
    number = fault["evidence"]["step"]
    times = [step["time"] for step in steps_of(run) if step["step"] == number]
    return float(max(times) - fault["time"]) if times else None


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Read the records of all steps, including repeated steps."""
    return [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == "step"]


def lateness(events: Sequence[dict[str, Any]]) -> float | None:
    """Return the seconds between a hang's limit and its detection; None for other faults."""
    fault = first_fault(events)
    if fault["evidence"]["fault"] != "hang":
        return None
    detected = [event["time"] for event in events if event["kind"] == "hang"]
    return float(min(detected, default=float("inf")) - fault["time"] - STEP_SECONDS)
