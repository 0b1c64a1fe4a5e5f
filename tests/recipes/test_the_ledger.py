"""The ledger has the stored rows: its tables are generated, and old findings are stale.

`make golden` writes the ledger here, after the golden recipes and plans that it reads, because
pytest runs the files in the order of their names.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import ledger, proofs
from benchmarks.ledger.ledger import recipe_section
from benchmarks.ledger.proofs import (
    DRY_RUN,
    FILES,
    MEASURED,
    MINIATURE,
    NOT_DONE,
    PARITY,
    LedgerEntry,
    read_entries,
    read_entry,
    read_proof,
)
from benchmarks.results_store import ResultRow, read_rows, save_rows, stamp_row
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup

NAME = "bloom560m"
PAGES = tuple(ledger.PARTS)
COUNT = re.compile(r"\| \d+ of \d+ ")


@pytest.fixture(scope="module")
def pages() -> dict[Path, str]:
    if os.environ.get("UPDATE_GOLDEN"):
        ledger.write_pages()
    return ledger.render_pages()


@pytest.fixture(scope="module")
def entries() -> list[LedgerEntry]:
    return read_entries()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_ledger_has_the_stored_rows(page: Path, pages: dict[Path, str]) -> None:
    assert page.read_text("utf-8") == pages[page], "`make golden` writes it"


def test_recipes_are_counted_once(pages: dict[Path, str], entries: list[LedgerEntry]) -> None:
    table = pages[ledger.FRONT].partition("<!-- counts")[2].partition("<!-- end of counts")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    named = [name for line in lines for name in ledger.NAMES.findall(line.split("|")[1])]
    assert sorted(named) == [entry.name for entry in entries]
    assert all(len(COUNT.findall(line)) == len(FILES) for line in lines)


def test_an_unlisted_recipe_is_added_to_the_last_line(entries: list[LedgerEntry]) -> None:
    line = "| `{}` | models | cluster | layout | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 |\n"
    first, last = ledger.count_proofs(
        line.format("teuken7b") + line.format(NAME), entries
    ).splitlines()
    assert ledger.NAMES.findall(first) == ["teuken7b"]
    others = {entry.name for entry in entries} - {"teuken7b"}
    assert {*ledger.NAMES.findall(last)} == others
    assert f" of {len(others)} |" in last


def test_rows_have_a_recipe_a_machine_and_a_date(entries: list[LedgerEntry]) -> None:
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


def parity_row(*words: str, **changes: object) -> ResultRow:
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
    return row | stamp_row(recipe, KeyGroup.MATHEMATICS) | changes


def entry_with(*rows: ResultRow) -> LedgerEntry:
    entry = read_entry(NAME)
    proofs = tuple(read_proof(PARITY, row) for row in rows)
    return LedgerEntry(name=NAME, composed=entry.composed, plan=entry.plan, proofs=proofs)


def test_a_finding_is_stale_once_the_mathematics_has_changed() -> None:
    current = read_proof(PARITY, parity_row())
    assert not current.stale
    assert current.is_valid
    other = read_proof(PARITY, parity_row("optimizer.eps=1e-6"))
    assert other.stale
    assert not other.is_valid
    assert ledger.proof_cell(entry_with(other.row), PARITY) == f"stale, {other.row['date']}"


def test_ranks_and_cluster_do_not_make_a_proof_of_mathematics_stale() -> None:
    assert not read_proof(PARITY, parity_row("cluster.ranks=2")).stale


def test_a_dry_run_is_stale_once_the_layout_has_changed() -> None:
    home = ("cluster=jean_zay_v100", "scale=full")
    dry_run = next(iter(read_entry(NAME).proofs_of(DRY_RUN))).row
    for words, stale in (((), False), (("parallelism.zero=1",), True)):
        recipe = compose_recipe(read_point([f"recipe={NAME}", *home, *words]))
        row = dry_run | stamp_row(recipe, KeyGroup.MATHEMATICS, KeyGroup.LAYOUT)
        assert read_proof(DRY_RUN, row).stale is stale


def test_the_verdict_distinguishes_layouts_that_hold_from_others() -> None:
    valid, broken = parity_row(), parity_row(holds=False)
    old = parity_row("optimizer.eps=1e-6")
    assert ledger.proof_cell(entry_with(valid), PARITY) == "holds"
    assert (
        ledger.proof_cell(entry_with(valid, valid, old), PARITY) == "holds, 2 layouts; 1 stale"
    )
    assert "**does not hold**" in ledger.proof_cell(entry_with(valid, broken), PARITY)
    assert not read_proof(PARITY, broken).is_valid
    empty = entry_with()
    assert [ledger.proof_cell(empty, kind) for kind in FILES] == list(NOT_DONE.values())


def test_a_row_replaces_only_the_row_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert read_rows(file) == []
    save_rows(file, "a convention", [{"recipe": "b", "n": 1}], lambda row: [row["recipe"]])
    rows = [{"recipe": "a", "n": 2}, {"recipe": "b", "n": 3}]
    save_rows(file, "a convention", rows, lambda row: [row["recipe"]])
    assert read_rows(file) == rows


def test_a_section_has_each_proved_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [parity_row(), parity_row(label="context 2", words=["model.num_layers=3"])]
    monkeypatch.setattr(proofs, "rows_of", lambda kind, name: rows * (kind == PARITY))
    text = recipe_section(read_entry(NAME))
    assert "| parity | data 2: holds; loss 1.0e-16, gradient 2.0e-16 in float64 |" in text
    assert "context 2, model.num_layers=3: holds" in text
    assert [
        f"| {kind} | {NOT_DONE[kind]} |" in text for kind in (DRY_RUN, MINIATURE, MEASURED)
    ] == [True] * 3
