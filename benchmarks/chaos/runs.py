"""One run that meets a case, and one that does not: what it did, whether both are equal.

A run has its own ranks and agent, as with `action=train`; what they share is imports.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import set_forkserver_preload
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.chaos.cases import LAYOUTS, RANKS, SAVED_STEPS, STEP_SECONDS, STEPS, Draw
from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.prepared_data import prepare_data
from components.run.folder import create_run_folder
from components.run.history import read_lines
from components.train.agent import run_ranks
from tests.life.conftest import TINY

LATE_SECONDS = 2.0  # in which a hang is found, after its limit
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
# What of the journal tells what a run did about a fault.
DEEDS = {"hang", "replicas", "slow_rank", "restart", "damaged", "skip", "stop", "relaunch"}
GOES_ON = {"roll_back", "resume", "start"}
LEFT_OUT = {"skip", "roll_back"}


@dataclass(frozen=True, kw_only=True)
class ChaosRow:
    """What a run met and did, as the journal's events, until its step was taken for good."""

    layout: str
    case: str
    draw: int
    step: int
    moment: str
    rank: int
    status: int
    did: list[str]
    seconds_to_go_on: float | None
    seconds_to_step: float | None
    hang_late_seconds: float | None
    same_weights: bool
    holds: bool


class Runs:
    """Runs of one miniature below ``home``; those that are compared with are made once.

    ``own`` are the keys in which it differs from the miniature of the tests.
    """

    def __init__(self, home: Path, own: Mapping[str, object] = OWN) -> None:
        self._home, self._own = home, own
        self._expected: dict[tuple[str, str], Path] = {}

    def strike(self, draw: Draw) -> ChaosRow:
        """Let one run meet a case, and compare where it ends."""
        run = self._home / f"{len(list(self._home.iterdir()))}"
        inject = json.dumps(draw.faults).replace('"', "")
        words = [*LAYOUTS[draw.layout], *draw.case.words, f"guard.inject={inject}"]
        status = self.begin(run, words)
        events = read_lines(run / "journal.jsonl")
        same = status == 0 and are_equal(run, self._undisturbed(draw.layout, events))
        deeds, late = did(events), lateness(events)
        shows = is_shown(draw, events)
        return ChaosRow(
            layout=draw.layout,
            case=draw.case.name,
            draw=draw.number,
            step=draw.step,
            moment=draw.moment,
            rank=draw.rank,
            status=status,
            did=deeds,
            seconds_to_go_on=seconds_to_go_on(run, events),
            seconds_to_step=seconds_to_step(run, events),
            hang_late_seconds=late,
            same_weights=same,
            holds=same and shows and (late or 0.0) <= LATE_SECONDS,
        )

    def _undisturbed(self, layout: str, events: Sequence[dict[str, Any]]) -> Path:
        """Train without the fault; told from the start what data the other run left out."""
        windows = [one["evidence"]["window"] for one in events if one["kind"] in LEFT_OUT]
        told = json.dumps(windows)
        if (layout, told) not in self._expected:
            run = self._home / f"expected-{len(self._expected)}"
            words = [*LAYOUTS[layout], *([f"data.skip={told}"] if windows else [])]
            if status := self.begin(run, words):
                raise RuntimeError(f"{run}: exit status {status}, and nothing struck it")
            self._expected[layout, told] = run
        return self._expected[layout, told]

    def begin(self, run: Path, words: Sequence[str]) -> int:
        """Start the ranks of a new run and return how their agent ends."""
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
def ranks_at_hand(log: Path) -> Iterator[None]:
    """Import once for all ranks of all runs; what they and their agents say goes to a file.

    Ranks are forks of one process. `run_ranks` would begin it for each run, in a process of its
    own: most of the time of a run as small as these.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"}
    torch.set_num_threads(1)
    descriptors = (sys.stdout.fileno(), sys.stderr.fileno())
    before = [os.dup(descriptor) for descriptor in descriptors]
    with log.open("wb") as said:
        for descriptor in descriptors:
            os.dup2(said.fileno(), descriptor)
    set_forkserver_preload(["__main__", "components.train.fit"])
    ensure_running()
    try:
        yield
    finally:
        for kept, descriptor in zip(before, descriptors, strict=True):
            os.dup2(kept, descriptor)


def last_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of the last checkpoint, the optimizer's too."""
    newest = max((run / "checkpoints").glob("tokens-*"))
    return {
        f"{newest.name} {file.name} {name}": tensor
        for file in sorted(newest.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def are_equal(one: Path, other: Path) -> bool:
    """Compare the last checkpoints of two runs bit for bit."""
    ours, theirs = last_tensors(one), last_tensors(other)
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def is_shown(draw: Draw, events: Sequence[dict[str, Any]]) -> bool:
    """Look whether what the case has to show is told, and of the step that was struck."""
    if draw.case.shows in LEFT_OUT:
        judged = [one for one in events if one["kind"] == draw.case.shows]
        return draw.step in [one["evidence"]["bad_step"] for one in judged]
    return any(deed.startswith(draw.case.shows) for deed in did(events))


def did(events: Sequence[dict[str, Any]]) -> list[str]:
    """Name what the journal tells after the first fault, and after which step it went on."""
    first = next(place for place, one in enumerate(events) if one["kind"] == "rehearsal")
    return list(dict.fromkeys(deed for one in events[first:] for deed in deeds_of(one)))


def deeds_of(event: dict[str, Any]) -> list[str]:
    """Name what an event tells of a fault's consequences, if it does."""
    kind = event["kind"]
    if kind in GOES_ON:
        return [f"{kind} at {event['step']}"]
    if kind == "checkpoint":
        return [f"waits ({reason})" for reason in event["evidence"]["reasons"]]
    return [kind] if kind in DEEDS else []


def seconds_to_go_on(run: Path, events: Sequence[dict[str, Any]]) -> float | None:
    """Return how long after the first fault any step was taken, be it one computed again."""
    fault = next(one for one in events if one["kind"] == "rehearsal")
    later = [one["time"] for one in steps_of(run) if one["time"] > fault["time"]]
    return float(min(later) - fault["time"]) if later else None


def seconds_to_step(run: Path, events: Sequence[dict[str, Any]]) -> float | None:
    """Return how long after the first fault its step was taken for the last time."""
    fault = next(one for one in events if one["kind"] == "rehearsal")
    taken = [one["time"] for one in steps_of(run) if one["step"] == fault["evidence"]["step"]]
    return float(max(taken) - fault["time"]) if taken else None


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Read what was noted of each step, of those computed again too."""
    return [one for one in read_lines(run / "metrics.jsonl") if one["kind"] == "step"]


def lateness(events: Sequence[dict[str, Any]]) -> float | None:
    """Return by how much a hang was found after its limit, from when it was fired."""
    fault = next(one for one in events if one["kind"] == "rehearsal")
    if fault["evidence"]["fault"] != "hang":
        return None
    found = [one["time"] for one in events if one["kind"] == "hang"]
    return float(min(found, default=float("inf")) - fault["time"] - STEP_SECONDS)
