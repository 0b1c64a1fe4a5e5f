"""Tokenizers and files of text, by number, through `new`, `prepare`, `train` and `evaluate`.

``python -m tests.attack.inputs --seed 7 --cases 600 [--only 123]``: even numbers are
tokenizers, odd numbers are files of text. This process imports everything and forks for each
case. The child runs the four commands. Each command ends with status 0 or 2. The token
files hold all documents that `prepare` accepted: they are decoded here without the program.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
from tokenizers import Tokenizer

from command.composition.conf_groups import compose_defaults
from command.main import main as main_of_command
from command.new_recipe import sizes
from tests.attack.driver import (
    LIMIT_SECONDS,
    TOO_LONG,
    check_one_thread,
    enter_folder,
    import_late_modules,
    run_words,
    wait_for,
)
from tests.attack.input_files import TextFiles, write_files
from tests.attack.input_tokenizers import EOD, write_tokenizer

COMMANDS = ("new", "prepare", "train", "evaluate")
# One step of one layer: the cases are about tokenizers and texts.
ONE_STEP = (
    *("budget.total_tokens=512", "budget.global_batch_tokens=512"),
    *("schedule.total_tokens=512", "schedule.warmup_tokens=0"),
    *("budget.sequence_length=128", "parallelism.microbatch_sequences=4"),
    *("model.num_layers=1", "evaluation.every_tokens=512"),
)
DONE, REFUSED = 0, 2
# The texts of the cases ask for the smallest models, so wider ones need no comparison.
SMALL_WIDTHS = tuple(width for width in sizes.WIDTHS if width <= 512)


@cache
def plain_text() -> str:
    """Return 40 kB of English prose and code from Python's standard library."""
    return Path(argparse.__file__).read_text("utf-8")[:40_000]


@dataclass(frozen=True, kw_only=True)
class InputCase:
    """The words of the commands, and the documents of the files unless they are damaged."""

    commands: Sequence[Sequence[str]]
    documents: Sequence[str] | None
    is_tokenizer: bool


def write_case(seed: int, number: int, folder: Path) -> InputCase:
    """Write the files of a case into ``folder``; the same two numbers make the same case."""
    random = Random(f"{seed}-{number}")
    text = plain_text()
    new = ["action=new", "name=mine", "file=mine.yaml"]
    is_tokenizer = number % 2 == 0
    if is_tokenizer:
        documents = [part for part in text.split("\n\n") if part.strip()]
        files = TextFiles(files={"t.txt": text.encode()}, data="t.txt", documents=documents)
        tokenizer = write_tokenizer(text, random)
        new.append("tokenizer=tok")
    else:
        files, tokenizer = write_files(text, random), {}
    for name, content in {
        **files.files,
        **{f"tok/{name}": content for name, content in tokenizer.items()},
    }.items():
        (folder / name).write_bytes(content)
    recipe = "recipe=./mine.yaml"
    commands = (
        [*new, f"data='{files.data}'"],
        [recipe, "action=prepare"],
        [recipe, "run=run", *ONE_STEP],
        ["action=evaluate", "run=run"],
    )
    return InputCase(commands=commands, documents=files.documents, is_tokenizer=is_tokenizer)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The statuses of the commands that ran, their output, and what is wrong."""

    statuses: Sequence[int]
    output: str
    problem: str


def run_case(work: Path, seed: int, number: int) -> Outcome:
    """Run the commands of a case, up to the first that does not end with 0.

    One child writes the files, runs the commands and decodes the tokens: threads of the
    libraries would not survive the next fork.
    """
    folder = work / "inputs" / str(number)
    for part in ("here/tok", "tmp", "home"):
        (folder / part).mkdir(parents=True)
    if (child := os.fork()) == 0:
        _be_the_child(folder, seed, number)
    ended = wait_for(child)
    case_file = folder / "case.json"
    assert case_file.exists(), f"case {number} cannot be made"
    case = InputCase(**json.loads(case_file.read_text("utf-8")))
    statuses = [int(line) for line in (folder / "statuses").read_text().split()]
    output = (folder / "output").read_text("utf-8", "backslashreplace")
    lost = folder / "lost"
    problem = find_problem(case, ended, statuses, output)
    if not problem and lost.exists():
        problem = lost.read_text("utf-8")
    return Outcome(statuses=statuses, output=output, problem=problem)


def _be_the_child(folder: Path, seed: int, number: int) -> None:
    """Run a case in this process, and end the process."""
    status = 1
    try:
        case = write_case(seed, number, folder / "here")
        (folder / "case.json").write_text(json.dumps(asdict(case)))
        enter_folder(folder, folder / "output", {})
        statuses = _run_commands(case, folder / "statuses")
        if statuses[1:2] == [DONE]:
            (folder / "lost").write_text(_find_lost_text(case))
        status = 0
    except BaseException:  # noqa: BLE001 (the parent reports the status)
        traceback.print_exc()
    finally:
        os._exit(status)


def _run_commands(case: InputCase, file: Path) -> Sequence[int]:
    """Write each status as its command ends: the process may not survive the next command."""
    statuses: list[int] = []
    with file.open("a", buffering=1) as stream:
        for words in case.commands:
            statuses.append(run_words(main_of_command, words))
            stream.write(f"{statuses[-1]}\n")
            if statuses[-1] != DONE:
                break
    return statuses


def find_problem(case: InputCase, child: int, statuses: Sequence[int], output: str) -> str:
    last = (output.strip().splitlines() or [""])[-1][:200]
    if child == TOO_LONG:
        return f"{COMMANDS[len(statuses)]} took more than {LIMIT_SECONDS} s"
    if child != 0:
        command = (*COMMANDS, "the check of the tokens")[len(statuses)]
        return f"the process ended with {child} in {command}: {last}"
    command = COMMANDS[len(statuses) - 1]
    if "Traceback (most recent" in output:
        return f"{command} prints a traceback: {last}"
    if statuses[-1] not in (DONE, REFUSED):
        return f"{command} ended with status {statuses[-1]}: {last}"
    if statuses[-1] == REFUSED:
        if len(statuses) > 2 or (len(statuses) > 1 and case.is_tokenizer):
            return f"{command} refuses what {COMMANDS[len(statuses) - 2]} accepted: {last}"
        if not case.is_tokenizer and case.documents is not None:
            return f"{command} refuses a sound file: {last}"
    return ""


def _find_lost_text(case: InputCase) -> str:
    """Compare the documents in the token files with the documents of the case."""
    if case.documents is None:
        return ""
    (folder,) = Path("prepared").glob("mine-*")
    engine = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = Counter(_squeeze(part) for text in case.documents for part in text.split(EOD))
    found = Counter(map(_squeeze, _decode_documents(folder, engine)))
    expected.pop("", None)
    found.pop("", None)
    missing = [*(expected - found)]
    if not missing:
        return ""
    return f"{len(missing)} documents are lost or changed: {missing[0][:80]!r}"


def _squeeze(text: str) -> str:
    """Remove white space and the marks that a tokenizer puts before words."""
    return "".join(text.replace("\ufeff", "").replace("▁", "").split())


def _bytes_of_letters() -> Mapping[str, int]:
    """Return GPT-2's alphabet of bytes (encoder.py of github.com/openai/gpt-2)."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (value for value in range(256) if value not in visible)
    return {chr(value): value for value in visible} | {
        chr(256 + position): value for position, value in enumerate(others)
    }


def _decode_documents(folder: Path, engine: Tokenizer) -> Iterator[str]:
    """Decode token files by the vocabulary and GPT-2's alphabet alone."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    letters = _bytes_of_letters()
    added = engine.get_added_tokens_decoder()
    pieces = {
        index: piece.encode() if index in added else bytes(letters[letter] for letter in piece)
        for piece, index in engine.get_vocab(with_added_tokens=True).items()
        if index in added or letters.keys() >= {*piece}
    }
    eod = manifest["tokenizer"]["eod_id"]
    for source in manifest["sources"].values():
        for file in (*source["train"], *source["held_out"]):
            document: list[bytes] = []
            for index in np.fromfile(folder / file["name"], file["dtype"]).tolist():
                if index == eod:
                    yield b"".join(document).decode("utf-8", "replace")
                    document = []
                else:
                    document.append(pieces[index])


def run_cases(work: Path, seed: int, numbers: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
    """Run the cases; the folder of a case that ended well is removed."""
    import_late_modules()
    compose_defaults()
    sizes.WIDTHS = SMALL_WIDTHS
    plain_text()
    check_one_thread()
    for number in numbers:
        outcome = run_case(work, seed, number)
        if not outcome.problem:
            shutil.rmtree(work / "inputs" / str(number))
        yield number, outcome


def main() -> int:
    """Run the cases that the command line names, and print how they ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.inputs")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--only", type=int, nargs="*")
    parser.add_argument("--without-pages", action="store_true", help="as without plotly")
    given = parser.parse_args()
    if given.without_pages:
        patch("components.report.write.find_spec", return_value=None).start()
    else:
        import_module("plotly.io")
        import_module("plotly.graph_objects")
    work = Path(tempfile.mkdtemp(prefix="inputs-")) / "work"
    output = os.dup(1)  # the valid files are made with much output
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    endings: Counter[str] = Counter()
    failures = 0
    for number, outcome in run_cases(work, given.seed, given.only or range(given.cases)):
        endings[f"{COMMANDS[len(outcome.statuses) - 1]} {outcome.statuses[-1:]}"] += 1
        failures += bool(outcome.problem)
        if outcome.problem or given.only:
            text = f"{number}: {outcome.problem}\n" + (outcome.output if given.only else "")
            os.write(output, text.encode("utf-8", "backslashreplace"))
    text = f"{endings.total()} cases, by last command and status {dict(endings)}, "
    os.write(output, f"{text}{failures} failures\n".encode())
    if not failures:
        shutil.rmtree(work.parent)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
