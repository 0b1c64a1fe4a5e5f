"""What a run was trained on, from the card beside its data; the mixture, promised and drawn."""

import json
from pathlib import Path

from components.report.data_card import data_grid, data_sections, mixture_grid
from components.report.outcome import load_entries
from components.run.ownership import seal_of, sign_file
from tests.components.report.conftest import WriteRun, read_report, results_tree

KEY = "abcdef0123456789"


def prepare(folder: Path, key: str = KEY) -> Path:
    """Write a card as a preparation does, of one source."""
    folder.mkdir()
    source = {
        "language": "de", "licence": "CC0-1.0", "origin": "the mill", "documents": 12,
        "train_tokens": 4321, "held_out_tokens": 77, "languages": {"de": 12}, "inputs": [],
        "mixture": {}, "samples": [],
    }  # fmt: skip
    totals = {
        "train_tokens": 4321, "held_out_tokens": 77, "documents": 12, "input_bytes": 9000,
    }  # fmt: skip
    tokenizer = {"settings": {"_target_": "components.x.Unigram"}, "vocab_size": 4064}
    card = {
        "name": "walnut-mini", "key": key, "tokenizer": tokenizer, "totals": totals,
        "sources": {"village": source}, "stages": {},
    }  # fmt: skip
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def trained_on(run: Path, folder: Path) -> Path:
    (run / "data.json").write_text(json.dumps({"folder": str(folder), "key": KEY}))
    sign_file(run / "data.json")
    return run


def test_a_card_of_another_users_run_is_not_opened(write_run, tmp_path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = trained_on(write_run(), prepare(tmp_path / "theirs"))
    seal_of(run / "data.json").unlink()
    [section] = data_sections(load_entries([run]))
    assert (section["key"], section["cards"]) == (KEY, ())
    inside = trained_on(run, prepare(tmp_path / "here" / "prepared"))
    seal_of(run / "data.json").unlink()
    assert data_sections(load_entries([inside]))[0]["cards"]


def test_the_page_has_the_card_s_figures_and_sources(write_run, tmp_path: Path) -> None:
    run = trained_on(write_run(), prepare(tmp_path / "walnut-mini-abc"))
    [section] = data_sections(load_entries([run]))
    assert (section["folder"], section["key"]) == ("walnut-mini-abc", KEY)
    assert section["sources"].rows[0][:4] == ("village", "4,321", "77", "12")
    page = read_report([run], tmp_path)
    assert "the mill" in page.text
    assert str(tmp_path) not in page.html  # paths name people


def test_runs_on_the_same_data_share_a_section(write_run: WriteRun, tmp_path: Path) -> None:
    folder = prepare(tmp_path / "prepared")
    runs = [trained_on(write_run(name), folder) for name in ("a", "b")]
    sections = data_sections(load_entries([*runs, write_run("c")]))
    grid = data_grid(sections)
    assert grid.columns[:4] == ("prepared in", "runs", "key", "tokens to train on")
    assert [row[:4] for row in grid.rows] == [("prepared", "a, b", KEY[:12], "4.32 k")]
    gone = data_grid([*sections, sections[0] | {"cards": ()}]).rows[1]
    assert set(gone[3:]) == {"—"}


def test_moved_or_changed_data_leave_only_their_key(write_run, tmp_path: Path) -> None:
    gone = trained_on(write_run("gone"), tmp_path / "nowhere")
    other = trained_on(write_run("other"), prepare(tmp_path / "again", key="another"))
    half = prepare(tmp_path / "half")
    (half / "card.json").write_text('{"key": "abc')
    for run in (gone, other, trained_on(write_run("half_run"), half)):
        [section] = data_sections(load_entries([run]))
        assert (section["key"], section["cards"], section["sources"].rows) == (KEY, (), ())
    assert "The card no longer exists." in read_report([gone], tmp_path).text
    assert data_sections(load_entries([write_run("of an older version")])) == []


def drawn(promised: float, share: float, epochs: float) -> dict[str, float]:
    return {"promised_share": promised, "share": share, "samples": 7, "epochs": epochs}


def test_every_source_has_a_row_of_shares_and_epochs(write_run: WriteRun) -> None:
    mixture = {"de": drawn(0.25, 0.2504, 1.5), "en": drawn(0.75, 0.7496, 0.25)}
    run = write_run("a", results=results_tree(60) | {"mixture": mixture})
    grid = mixture_grid(load_entries([run]))
    assert grid.columns == ("source", "promised", "drawn", "times read")
    rows = [("de", "25.000%", "25.040%", "1.50"), ("en", "75.000%", "74.960%", "0.25")]
    assert grid.rows == rows
    assert mixture_grid(load_entries([write_run("killed", killed=True)])).rows == []


def test_runs_with_the_same_draws_share_a_column(write_run: WriteRun) -> None:
    runs = [
        write_run(name, results=results_tree(60) | {"mixture": {source: drawn(1, 1, 1)}})
        for name, source in {"a": "de", "b": "fr", "c": "de"}.items()
    ]
    grid = mixture_grid(load_entries(runs))
    assert grid.columns == ("source", "a, c", "b")
    assert grid.rows == [("de", "100.000%", "—"), ("fr", "—", "100.000%")]
    assert mixture_grid(load_entries(runs[::2])).columns == ("source", "all runs")
