"""What others have written is shown on a terminal as it reads, and never acts on it."""

import logging
import os
import pty
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from command.actions.show import print_recipe
from command.comparison import print_differences
from components import terminal
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.report.document import print_document
from components.report.plan_page import plan_document
from components.report.plan_tables import picture_of
from components.sharing.differences import Side, compare_sides
from tests.recipes.compositions import at_home

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "\x1b]0;x\a\u202e [table three] [/nope] :smile:"
SHOWN = "\u241b]0;x\u2407\ufffd [table three] [/nope] :smile:"
ACTING = ("\x1b", "\a", "\u202e")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\u241b[2J"),
        ("a\rb\b\v\f\0", "a\u240db\u2408\u240b\u240c\u2400"),
        ("\x7f\x9b31m", "\u2421\ufffd31m"),
        ("\u200e\u200f\u061c\u202a\u202e\u2066\u2069", "\ufffd" * 7),
        ("\u2028\u2029\ufeff\u200b\u2060\u00ad", "\ufffd" * 6),
        ("\udcff\U000e0041", "\ufffd\ufffd"),
        ("ad\u200dmin \u200c", "ad\ufffdmin \ufffd"),
        ("\u0645\u200c\u200c\u062e", "\u0645\u200c\ufffd\u062e"),
    ],
)
def test_control_and_invisible_characters_are_replaced(text: str, shown: str) -> None:
    assert terminal.escape_invisible(text) == shown
    assert len(text) == len(shown)


@pytest.mark.parametrize(
    "text",
    [
        "two\n\tlines, 3\u00a0% \u2014 \u201eja\u201c",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian spelling
        "\u0915\u094d\u200d\u0937",  # Devanagari, a half form
        "\u0e44\u0e17\u0e22 \u65e5\u672c\u8a9e \u05d0\u05d1 e\u0301 \u06dd\u0661",
        "\U0001f469\u200d\U0001f52c",  # one woman of science, not two figures
    ],
)
def test_text_in_any_language_is_unchanged(text: str) -> None:
    assert terminal.escape_invisible(text) == text


@given(st.text(st.characters(exclude_categories=())))
def test_cleaned_text_is_stable_and_encodable(text: str) -> None:
    shown = terminal.escape_invisible(text)
    assert terminal.escape_invisible(shown) == shown
    found = {unicodedata.category(one) for one in shown if one not in "\n\t"}
    assert not found & {"Cc", "Cs", "Zl", "Zp"}
    shown.encode()


def test_printed_and_logged_lines_are_cleaned(capfd: pytest.CaptureFixture[str]) -> None:
    terminal.log_line(str(RecipeError("recipe", f"no {HOSTILE}", HOSTILE)))
    terminal.say_at_once(HOSTILE)
    terminal.print_output(HOSTILE)
    out, err = capfd.readouterr()
    assert err == f"recipe: no {SHOWN}\n  {SHOWN}\n{SHOWN}\n"
    assert out == f"{SHOWN}\n"


def test_titles_headings_and_cells_of_a_table_are_cleaned(capsys) -> None:
    table = Table(HOSTILE, title=HOSTILE, title_justify="left", box=None)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE.removesuffix(":smile:")))
    terminal.create_console(width=100).print(table)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [SHOWN] * 3
    # rich itself drops the bell of what is already Text
    assert lines[3] == "\u241b]0;x\ufffd [table three] [/nope]"


def test_replaced_characters_keep_columns_aligned(capsys) -> None:
    table = Table("key", "value", box=None)
    table.add_row("\u202e\u200babc", "1")
    table.add_row("abcde", "2")
    terminal.create_console(width=100).print(table)
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.index("1") == second.index("2")


def read_clean(capsys: pytest.CaptureFixture[str]) -> str:
    out = capsys.readouterr().out
    assert not any(one in out for one in ACTING)
    return out


def hostile(recipe: Recipe) -> Recipe:
    tree = recipe.model_dump(mode="json")
    tree["description"] = HOSTILE
    for item in (*tree["published"].values(), *tree["assumed"].values()):
        item |= {key: HOSTILE for key in ("source", "reason") if key in item}
    return check_recipe(tree)


def test_a_shown_recipe_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    print_recipe(hostile(at_home("teuken7b")))
    out = read_clean(capsys)
    assert "\\e]0;x\\a\ufffd [table three] [/nope]" in " ".join(out.split())


def test_a_shown_plan_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = hostile(at_home("teuken7b"))
    plan = plan_recipe(recipe)
    document = plan_document(plan, picture_of(plan), why=recipe.description)
    print_document(document, terminal.create_console(width=130))
    out = read_clean(capsys)
    (row,) = (one for one in out.splitlines() if one.startswith(next(iter(recipe.assumed))))
    assert SHOWN in row


def test_shown_differences_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = at_home("teuken7b")
    a = Side(label=HOSTILE, tree=recipe.model_dump(mode="json"))
    b = Side(label="b", tree=hostile(recipe).model_dump(mode="json"))
    print_differences(a, b, compare_sides(a, b), [HOSTILE])
    out = read_clean(capsys)
    assert out.endswith(f"note: {SHOWN}\n")
    assert sum(SHOWN in line for line in out.splitlines()) > 2


@pytest.mark.quick("0-words0")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, []),
        (0, ["recipe=teuken7b", "action=show"]),
        (0, ["recipe=teuken7b", "cluster=juwels", "action=plan"]),
        (0, ["a=teuken7b", "b=bloom7b1", "action=diff"]),
        (2, ["recipe=caf\u00e9\x1b]0;x\a"]),
    ],
)
def test_an_ascii_terminal_causes_no_traceback(status, words, tmp_path):
    program = [sys.executable, str(ROOT / "run.py"), *words]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, env=environment)
    assert done.returncode == status
    said = (done.stdout + done.stderr).decode("ascii")
    assert "Traceback" not in said
    assert "\x1b" not in said


LOGS = f"""
import logging, warnings
from components.terminal import prepare_streams
prepare_streams()
prepare_streams()
logging.getLogger("x").warning("%s", {HOSTILE!r})
library = logging.getLogger("library")
library.addHandler(logging.StreamHandler())
library.propagate = False
library.warning("%s", {HOSTILE!r})
warnings.warn({HOSTILE!r}, stacklevel=1)
"""


def test_log_records_and_warnings_are_cleaned_and_printed_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert not any(one in done.stderr for one in ACTING)
    assert done.stderr.startswith(f"{SHOWN}\n")
    assert done.stderr.count(SHOWN) == 3


def test_streams_without_a_file_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])
    terminal.prepare_streams()
    assert sys.stdout is None


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("on /home/alice/texts/*.txt, /scratch/a.jsonl.", "on *.txt, a.jsonl."),
        ("`/home/alice/tok` and ~/texts/b.txt, ~alice/c", "`tok` and b.txt, c"),
        ("dataset:/home/alice/d", "dataset:d"),
        *[
            (text, text)
            for text in ("https://arxiv.org/abs/1, texts/a.txt", "8/3, a / b, x // y")
        ],
    ],
)
def test_published_text_has_no_folders(text: str, published: str) -> None:
    assert terminal.hide_folders(text) == published


BAR = f"""
from types import SimpleNamespace
from components.terminal import create_console
from components.train.callbacks.display import RunProgressBar
display = RunProgressBar(create_console(stderr=True))
numbers = SimpleNamespace(steps=2)
recipe = SimpleNamespace(name={HOSTILE!r}, derived_numbers=numbers)
last = SimpleNamespace(step=1, loss=2.5, tokens_per_second=7.0)
progress = SimpleNamespace(tokens=0, step=0)
module = SimpleNamespace(recipe=recipe, progress=progress, last=last, verdict=None)
display.on_train_start(None, module)
display.on_train_batch_end(None, module)
display.print_line({HOSTILE!r})
display.close()
"""


@pytest.mark.long
def test_only_the_progress_bar_itself_moves_the_cursor(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    subprocess.run(
        [sys.executable, "-c", BAR], cwd=ROOT, stderr=theirs, check=True, env=environment
    )
    os.close(theirs)
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    for shown in ("\x1b[?25l", "\x1b[2K", "loss 2.500", SHOWN):
        assert shown in said
    assert "\x1b]0;" not in said
    assert "\u202e" not in said
