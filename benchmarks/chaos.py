"""Break a run in every way that can be rehearsed; it must end as if nothing had been.

    python -m benchmarks.chaos [CASE ...]

A miniature trains on four gloo ranks, tensor 2 x data 2 and pipeline 2 x data 2. Each case is a
run that meets a fault, on a rank that is drawn, at a moment that matters to checkpoints, which
are written while the steps go on. Its last weights and optimizer state must be, bit for bit,
those of a run that nothing struck; where the rule is to leave out bad data, those of a run that
was told so from the start. Nobody helps, but where the disk is full: the run has to end with
exit status 2, and to go on when it is started again. A hang must be found within
``watchdog.step_seconds`` and two seconds more. Exit status 1 if one does not hold.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
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
STEPS, SAVED_STEPS, STEP_SECONDS = 16, 4, 3.0
LATE_SECONDS = 2.0  # in which a hang is found, after its limit
LAYOUTS = {
    "tensor 2 x data 2": ("parallelism.tensor=2", "parallelism.data=2"),
    "pipeline 2 x data 2": ("parallelism.pipeline=2", "parallelism.data=2"),
}
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
    "cluster.ranks": 4,
}
# Spikes go by the gradient's norm, whose rule needs some steps to have gone before.
SPIKES = (
    "guard.gradient_norm_spike={action: skip, most: 9, within_tokens: 1_000_000, "
    "window_steps: 8, deviations: 7.0}"
)
ROLL_BACK = (
    "guard.non_finite={action: roll_back, most: 9, within_tokens: 1_000_000}",
    "guard.roll_back.skip_steps=2",
)
# What of the journal tells what a run did about a fault.
DEEDS = {"hang", "replicas", "slow_rank", "restart", "damaged", "skip", "stop"}
GOES_ON = {"roll_back", "resume"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Faults that a run meets, each with its step; ``status`` is how its first start ends."""

    name: str
    moment: str
    faults: tuple[dict[str, Any], ...]
    words: tuple[str, ...] = ()
    status: int = 0


SAVING = SAVED_STEPS * 2  # a step after which a checkpoint is written, beside the next step
CASES = (
    Case(
        name="nan, skip",
        moment="a save is being written",
        faults=({"fault": "nan", "step": SAVING + 1},),
    ),
    Case(
        name="nan, roll back",
        moment="a save is being written",
        faults=({"fault": "nan", "step": SAVING + 1},),
        words=ROLL_BACK,
    ),
    Case(
        name="spike, skip",
        moment="a save is being written",
        faults=({"fault": "spike", "step": SAVING + SAVED_STEPS + 1},),
        words=(SPIKES,),
    ),
    Case(
        name="bit_flip",
        moment="in the step that is to be saved",
        faults=({"fault": "bit_flip", "step": SAVING, "bit": 12},),
    ),
    Case(
        name="kill",
        moment="a save is being written",
        faults=({"fault": "kill", "step": SAVING + 1},),
    ),
    Case(
        name="hang, sleeps",
        moment="a save is being written",
        faults=({"fault": "hang", "step": SAVING + 1, "how": "sleeps"},),
    ),
    Case(
        name="hang, holds",
        moment="between saves",
        faults=({"fault": "hang", "step": SAVING + 3, "how": "holds"},),
    ),
    Case(
        name="slow_rank",
        moment="a save is being written",
        faults=({"fault": "slow_rank", "step": SAVING + 1, "seconds": 0.1, "steps": 4},),
    ),
    Case(
        name="truncated_checkpoint, kill",
        moment="between saves",
        faults=(
            {"fault": "truncated_checkpoint", "step": SAVING + 3},
            {"fault": "kill", "step": SAVING + 3},
        ),
    ),
    Case(
        name="files_gone, 3 s",
        moment="before a save",
        faults=({"fault": "files_gone", "step": SAVING, "seconds": 3.0},),
    ),
    Case(
        name="full_disk",
        moment="before a save",
        faults=(
            {"fault": "full_disk", "step": SAVING, "seconds": 999.0, "free_bytes": 40_000},
        ),
        status=2,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a run met and did, as the journal's events, until its step was taken for good."""

    layout: str
    case: str
    moment: str
    rank: int
    statuses: list[int]
    did: list[str]
    seconds_to_step: float
    hang_late_seconds: float | None
    same_weights: bool
    holds: bool


def start(run: Path, words: Sequence[str]) -> int:
    """Start the program and return its exit status.

    Raises:
        RuntimeError: it is that of a failure that nobody rehearses, with what it said last.
    """
    done = subprocess.run(
        command(*words), env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode not in {0, 2}:
        raise RuntimeError(f"{run}: exit status {done.returncode}\n{done.stderr[-2_000:]}")
    return done.returncode


def begin(run: Path, words: Sequence[str]) -> int:
    """Start a new run of the miniature."""
    tiny = [word for word in TINY if word.partition("=")[0] not in OWN]
    own = [f"{key}={value}" for key, value in OWN.items()]
    places = (f"run={run}", f"data.folder={run.parent}/prepared")
    return start(run, [*tiny, *own, *words, *places])


def last_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of the last checkpoint, the optimizer's too."""
    newest = max((run / "checkpoints").glob("tokens-*"))
    return {
        f"{file.name} {name}": tensor
        for file in sorted(newest.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def are_equal(one: Path, other: Path) -> bool:
    """Compare the last checkpoints of two runs bit for bit."""
    ours, theirs = last_tensors(one), last_tensors(other)
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def strike(home: Path, layout: str, case: Case, undisturbed: Path) -> Row:
    """Let one run meet a case; where it ends by its exit status, start it once more."""
    rank = random.Random(f"{layout} {case.name}").randrange(4)
    run = home / f"{layout}-{case.name}".replace(" ", "-").replace(",", "")
    inject = json.dumps([fault | {"rank": rank} for fault in case.faults]).replace('"', "")
    words = [*LAYOUTS[layout], *case.words]
    statuses = [begin(run, [*words, f"guard.inject={inject}"])]
    if case.status == statuses[0] == 2:
        statuses.append(start(run, [f"resume={run}"]))
    events = read_lines(run / "journal.jsonl")
    deeds = ("skip", "roll_back")
    windows = [one["evidence"]["window"] for one in events if one["kind"] in deeds]
    expected = undisturbed
    if windows:
        expected = home / f"{run.name}-told"
        begin(expected, [*words, f"data.skip={json.dumps(windows)}"])
    same, late = are_equal(run, expected), lateness(events)
    return Row(
        layout=layout,
        case=case.name,
        moment=f"before step {case.faults[0]['step']}: {case.moment}",
        rank=rank,
        statuses=statuses,
        did=did(events),
        seconds_to_step=seconds_to_step(run, events),
        hang_late_seconds=late,
        same_weights=same,
        holds=same
        and statuses[0] == case.status
        and statuses[-1] == 0
        and (late or 0.0) <= LATE_SECONDS,
    )


def did(events: Sequence[dict[str, Any]]) -> list[str]:
    """Name what the journal tells after the first fault, and after which step it went on."""
    first = next(place for place, one in enumerate(events) if one["kind"] == "rehearsal")
    told = [
        f"{one['kind']} at {one['step']}" if one["kind"] in GOES_ON else one["kind"]
        for one in events[first:]
        if one["kind"] in DEEDS | GOES_ON
    ]
    return list(dict.fromkeys(told))


def seconds_to_step(run: Path, events: Sequence[dict[str, Any]]) -> float:
    """Return how long after the first fault its step was taken for the last time."""
    fault = next(one for one in events if one["kind"] == "rehearsal")
    steps = [one for one in read_lines(run / "metrics.jsonl") if one["kind"] == "step"]
    taken = [one["time"] for one in steps if one["step"] == fault["evidence"]["step"]]
    return float(max(taken) - fault["time"])


def lateness(events: Sequence[dict[str, Any]]) -> float | None:
    """Return by how much a hang was found after its limit, from when it was fired."""
    faults = [one for one in events if one["kind"] == "rehearsal"]
    if faults[0]["evidence"]["fault"] != "hang":
        return None
    found = [one["time"] for one in events if one["kind"] == "hang"]
    return float(min(found, default=float("inf")) - faults[0]["time"] - STEP_SECONDS)


def check_complete() -> None:
    """Ask for a case of every fault that a recipe may inject.

    Raises:
        RuntimeError: a kind has none.
    """
    kinds = get_args(get_args(Injection)[0])
    known = {get_args(kind.model_fields["fault"].annotation)[0] for kind in kinds}
    if missing := known - {fault["fault"] for case in CASES for fault in case.faults}:
        raise RuntimeError(f"no case has {', '.join(sorted(missing))}")


def strikes(home: Path, asked: Sequence[str]) -> Iterator[Row]:
    """Go through all layouts and cases, or those whose names begin with what is asked for."""
    for layout, words in LAYOUTS.items():
        undisturbed = home / f"{layout}-undisturbed".replace(" ", "-")
        begin(undisturbed, words)
        for case in CASES:
            if not asked or case.name.startswith(tuple(asked)):
                yield strike(home, layout, case, undisturbed)


def table(rows: Sequence[Row]) -> Table:
    """Lay out what is printed at the end."""
    made = Table("fault", "layout", "moment", "the run", "s to its step", "same weights")
    for row in rows:
        ways = ", ".join([*row.did, *(f"exit {status}" for status in row.statuses)])
        same = "yes" if row.same_weights else "NO"
        made.add_row(row.case, row.layout, row.moment, ways, f"{row.seconds_to_step:.1f}", same)
    return made


def main() -> int:
    """Strike, print the table, keep the results, and say whether all hold."""
    check_complete()
    console, rows = Console(width=160), []
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        for row in strikes(home, sys.argv[1:]):
            rows.append(row)
            word = "holds" if row.holds else "FAILS"
            console.print(f"{row.layout}, {row.case}: {word} {row}")
    finally:
        shutil.rmtree(home)
    console.print(table(rows))
    if not sys.argv[1:]:
        tree = {
            "convention": "wall clock, from the fault until its step was taken for good",
            "rows": [asdict(row) for row in rows],
            "machine": machine(),
            "versions": {"torch": torch.__version__},
        }
        RESULTS.write_text(json.dumps(tree, indent=1) + "\n", "utf-8")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
