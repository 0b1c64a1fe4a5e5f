"""The ledger says what is kept: its tables are generated, and an old finding is called stale.

`make golden` writes the ledger here, after the golden recipes and plans that it reads: pytest
goes through the files in the order of their names.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kept import Row, keep_rows, read_rows, stamp
from benchmarks.ledger import ledger, proofs
from benchmarks.ledger.proofs import (
    DRY_RUN,
    FILES,
    MEASURED,
    MINIATURE,
    NOT_DONE,
    PARITY,
    LedgerEntry,
    proof_of,
    read_entries,
    read_entry,
)
from benchmarks.ledger.sections import section
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup

NAME = "bloom560m"
PAGES = tuple(ledger.PARTS)
COUNT = re.compile(r"\| \d+ of \d+ ")


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    if os.environ.get("UPDATE_GOLDEN"):
        ledger.write()
    return ledger.pages()


@pytest.fixture(scope="module")
def entries() -> list[LedgerEntry]:
    return read_entries()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_ledger_is_what_is_kept(page: Path, pages: dict[Path, str]) -> None:
    assert page.read_text("utf-8") == pages[page], "`make golden` writes it"


def test_every_recipe_is_counted_once_on_the_front_page(
    pages: dict[Path, str], entries: list[LedgerEntry]
) -> None:
    table = pages[ledger.FRONT].partition("<!-- counts")[2].partition("<!-- end of counts")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    named = [name for line in lines for name in ledger.NAMES.findall(line.split("|")[1])]
    assert sorted(named) == [entry.name for entry in entries]
    assert all(len(COUNT.findall(line)) == len(FILES) for line in lines)


def test_a_recipe_that_no_line_names_joins_the_last_one(entries: list[LedgerEntry]) -> None:
    line = "| `{}` | of them | there | so | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 |\n"
    first, last = ledger.counts(
        line.format("teuken7b") + line.format(NAME), entries
    ).splitlines()
    assert ledger.NAMES.findall(first) == ["teuken7b"]
    others = {entry.name for entry in entries} - {"teuken7b"}
    assert {*ledger.NAMES.findall(last)} == others
    assert f" of {len(others)} |" in last


def test_every_kept_row_is_of_a_recipe_and_says_where_when_and_with_what(
    entries: list[LedgerEntry],
) -> None:
    for proof in (proof for entry in entries for proof in entry.proofs):
        row = proof.row
        assert {"processor", "cores"} <= row["machine"].keys()
        assert "torch" in row["versions"]
        assert len(row["date"]) == len("2026-11-21")
        assert len(row["fingerprint"]["mathematics"]) == 64
    named = {
        row["recipe"] for kind in FILES if kind != DRY_RUN for row in read_rows(FILES[kind])
    }
    assert named <= {entry.name for entry in entries}


def parity_row(*words: str, **changes: object) -> Row:
    recipe = compose_recipe(read_point([f"recipe={NAME}", "scale=parity", *words]))
    row: dict[str, Any] = {
        "recipe": NAME,
        "words": [],
        "label": "data 2",
        "ranks": 2,
        "holds": True,
        "precision": "float64",
        "loss": 1e-16,
        "gradient": 2e-16,
        "weight": None,
    }
    return row | stamp(recipe, KeyGroup.MATHEMATICS) | changes


def entry_with(*rows: Row) -> LedgerEntry:
    known = read_entry(NAME)
    proofs = tuple(proof_of(PARITY, row) for row in rows)
    return LedgerEntry(name=NAME, composed=known.composed, plan=known.plan, proofs=proofs)


def test_a_finding_is_stale_once_the_mathematics_has_changed() -> None:
    current = proof_of(PARITY, parity_row())
    assert not current.stale
    assert current.stands
    other = proof_of(PARITY, parity_row("optimizer.eps=1e-6"))
    assert other.stale
    assert not other.stands
    assert ledger.cell(entry_with(other.row), PARITY) == f"stale, {other.row['date']}"


def test_ranks_and_cluster_leave_a_proof_of_mathematics_as_it_is() -> None:
    assert not proof_of(PARITY, parity_row("cluster.ranks=2")).stale


def test_a_dry_run_is_stale_once_the_layout_has_changed() -> None:
    home = ("cluster=jean_zay_v100", "scale=full")
    dry = next(iter(read_entry(NAME).of(DRY_RUN))).row
    for words, stale in (((), False), (("parallelism.zero=1",), True)):
        recipe = compose_recipe(read_point([f"recipe={NAME}", *home, *words]))
        row = dry | stamp(recipe, KeyGroup.MATHEMATICS, KeyGroup.LAYOUT)
        assert proof_of(DRY_RUN, row).stale is stale


def test_the_verdict_tells_layouts_that_hold_from_those_that_do_not() -> None:
    held, broken = parity_row(), parity_row(holds=False)
    old = parity_row("optimizer.eps=1e-6")
    assert ledger.cell(entry_with(held), PARITY) == "holds"
    assert ledger.cell(entry_with(held, held, old), PARITY) == "holds, 2 layouts; 1 stale"
    assert "**does not hold**" in ledger.cell(entry_with(held, broken), PARITY)
    assert not proof_of(PARITY, broken).stands
    empty = entry_with()
    assert [ledger.cell(empty, kind) for kind in FILES] == list(NOT_DONE.values())


def test_a_row_takes_the_place_of_its_like_and_of_no_other(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert read_rows(file) == []
    keep_rows(file, "counted so", [{"recipe": "b", "n": 1}], lambda row: [row["recipe"]])
    rows = [{"recipe": "a", "n": 2}, {"recipe": "b", "n": 3}]
    keep_rows(file, "counted so", rows, lambda row: [row["recipe"]])
    assert read_rows(file) == rows


def test_a_section_has_each_layout_that_was_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [parity_row(), parity_row(label="context 2", words=["model.num_layers=3"])]
    monkeypatch.setattr(proofs, "rows_of", lambda kind, name: rows * (kind == PARITY))
    text = section(read_entry(NAME))
    assert "| parity | data 2: holds; loss 1.0e-16, gradient 2.0e-16 in float64 |" in text
    assert "context 2, model.num_layers=3: holds" in text
    assert [
        f"| {kind} | {NOT_DONE[kind]} |" in text for kind in (DRY_RUN, MINIATURE, MEASURED)
    ] == [True] * 3
