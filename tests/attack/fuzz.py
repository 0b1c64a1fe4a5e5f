"""Mutated recipes, locks, bundles, studies, run folders and commands, by number.

``python -m tests.attack.fuzz --seed 7 --cases 2000 [--only 1234]`` runs them through every
action that reads them and prints how they ended; a case is repeated by its number.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.attack.changes import SECRET
from tests.attack.driver import LIMIT_SECONDS, TOO_LONG, Case, Result, Room
from tests.attack.mutations import mutate_words

MOST_STATUS = 3  # 4 is a fault of the program
RAW = re.compile("[\x1b\x9b\u202a-\u202e\u2066-\u2069]")
RECIPES = (
    *("recipe={} action=show", "recipe={} action=plan cluster=jean_zay scale=full"),
    *("recipe={} action=pack file=out.lock.yaml", "recipe={} action=pack file=out.recipe.yaml"),
    *("recipe={} action=render cluster=juwels", "action=diff a={} b=teuken7b"),
)
OF_RUN = (
    *("action=status run={}", "action=report run={}", "action=pack run={} file=out.lock.yaml"),
    *("action=pack run={} file=out.recipe.yaml", "action=diff a={} b=bloom560m"),
    *("action=cancel run={}", "action=status runs=[{}]"),
)
STUDIES = (
    "-m study={} action=plan",
    "study={} action=report",
    "-m study={} action=plan output=json",
)
# By kind of file: the files that may be changed, and the commands that read them.
TARGETS: Mapping[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "recipe": ("./r.yaml", ["r.yaml"], RECIPES),
    "lock": (
        "x.lock.yaml",
        ["x.lock.yaml"],
        ("action=verify file={}", "action=diff a={} b=bloom560m", "recipe=./{} action=show"),
    ),
    "bundle": ("./x.recipe.yaml", ["x.recipe.yaml"], (*RECIPES, "action=verify file={}")),
    "study": ("./s.yaml", ["s.yaml"], STUDIES),
    "run": (
        "run",
        [
            *("run/recipe.json", "run/results.json", "run/derived.json", "run/software.json"),
            *("run/environment.json", "run/data.json", "run/metrics.jsonl", "run/events.jsonl"),
            "run/checkpoints/tokens-000000000008192/progress.json",
        ],
        (*OF_RUN, "resume=run"),
    ),
    "submitted": (
        "submitted",
        [*("submitted/jobs/chain.jsonl", "submitted/recipe.json"), "submitted/metrics.jsonl"],
        OF_RUN,
    ),
    "site": ("r.yaml", ["site.yaml"], ("recipe=./{} action=render cluster=juwels",)),
    "calibration": ("measured", ["measured/results.json"], ("action=plan calibrate=[{}]",)),
}
# Commands to garble; none of them trains, whatever is left of it.
LINES = (
    "recipe=teuken7b action=show",
    "recipe=bloom560m action=plan cluster=jean_zay scale=full",
    "recipe=./r.yaml action=pack file=out.lock.yaml",
    "action=verify file=x.lock.yaml",
    "action=diff a=teuken7b b=bloom560m",
    "-m recipe=teuken7b optimizer.lr=1e-4,1e-3 action=show",
    "recipe=./x.recipe.yaml action=render cluster=juwels",
    "action=status run=run",
)
SAFE = re.compile(
    r"action=(?!auto|train|submit|prepare|parity|dryrun|stage|preflight|sync|$)\S+"
)


def case_of(seed: int, number: int) -> Case:
    """Make a case; the same two numbers make the same one."""
    random = Random(f"{seed}-{number}")
    name = f"fuzz-{number}"
    if random.random() < 0.3:
        words = mutate_words(random.choice(LINES).split(), random)
        if sum(SAFE.fullmatch(word) is not None for word in words) != 1:
            words = [*(word for word in words if not word.startswith("action=")), "action=show"]
        return Case(name=name, kind="words", words=words)
    kind = random.choice([*TARGETS, *("recipe", "lock", "bundle", "run", "run")])
    named, files, commands = TARGETS[kind]
    changes = [{"in": random.choice(files), "mutate": f"{seed}-{number}"}]
    command = random.choice(commands)
    if command == "resume=run":  # only what must be refused: the run has finished
        changes[0]["in"] = "run/recipe.json"
    return Case(name=name, kind=kind, words=command.format(named).split(), changes=changes)


@dataclass
class Count:
    """How the cases ended, and what was wrong with those that failed."""

    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    slowest: float = 0.0

    def add(self, number: int, result: Result) -> None:
        self.statuses[result.status] += 1
        self.slowest = max(self.slowest, result.seconds)
        if problem := failed(result):
            self.failures[number] = problem


def failed(result: Result) -> str:
    """Say what no command line and no file may lead to; nothing if all is well."""
    last = (result.said.strip().splitlines() or [""])[-1]
    if result.status == TOO_LONG:
        return f"more than {LIMIT_SECONDS} s"
    if "Traceback (most recent" in result.said:
        return f"a traceback: {last[:200]}"
    if not 0 <= result.status <= MOST_STATUS:
        return f"exit status {result.status}: {last[:200]}"
    if result.acts or result.stray:
        return f"acts: {[*result.acts, *result.stray]}"
    if RAW.search(result.said):
        return "raw controls are printed"
    return "tells a secret" if SECRET in result.said else ""


def run_cases(work: Path, seed: int, numbers: Sequence[int]) -> Iterator[tuple[int, Result]]:
    """Run the cases; the folder of one that ended well is not kept."""
    room = Room(work)
    room.open()
    from command.main import main

    sys.dont_write_bytecode = True  # a compiled module would count as an act

    for number in numbers:
        result = room.run(case_of(seed, number), main)
        if not failed(result):
            shutil.rmtree(work / "cases" / result.name)
        yield number, result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.fuzz")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="fuzz-")) / "work"
    numbers = range(given.cases) if given.only is None else [given.only]
    said = os.dup(1)  # the valid files are made aloud
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    count = Count()
    for number, result in run_cases(work, given.seed, numbers):
        count.add(number, result)
        if number in count.failures or given.only is not None:
            case = case_of(given.seed, number)
            told = f"{number}: {' '.join(case.words)!r}: {count.failures.get(number, '')}\n"
            os.write(said, told.encode("utf-8", "backslashreplace"))
        if given.only is not None:
            os.write(said, f"{result}\n{work / 'cases'}\n".encode())
    text = f"{len(numbers)} cases, by exit status {dict(sorted(count.statuses.items()))}, "
    text += f"{len(count.failures)} failures, the slowest took {count.slowest:.1f} s\n"
    os.write(said, text.encode())
    if not count.failures and given.only is None:
        shutil.rmtree(work.parent)
    return 1 if count.failures else 0


if __name__ == "__main__":
    sys.exit(main())
