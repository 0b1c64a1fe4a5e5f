"""The page of a report: what it says, that it is written whole, and where it is not written."""

import errno
import re
import sys
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report import html
from components.report.html import check_plotly
from components.report.outcome import load_entries, load_run
from components.report.page import MOST_NAMED, events_grid, write_report
from components.report.write import write_card_if_possible, write_report_if_possible
from tests.components.report.conftest import (
    mark_line,
    read_report,
    results_tree,
    step_line,
)


def test_shows_the_key_figures_of_one_run(write_run, tmp_path):
    text = read_report([write_run()], tmp_path).text
    figures = ("walnut7b", "2.535", "2.715", "6.543", "492 k", "16.4 k", "1.23 M", "1,234,567")
    sentences = ("Miniature.", "full attention", "causal attention", "no source says")
    for said in (*figures, *sentences, "total_tokens: 491_520"):
        assert said in text


def test_a_full_size_run_is_not_called_a_miniature(write_run, tmp_path):
    recipe = dict(load_run(write_run("a")).recipe, scale={"name": "full", "shrink": "none"})
    assert "iniature" not in read_report([write_run("b", recipe=recipe)], tmp_path).text


def test_half_a_character_in_a_recipe_does_not_stop_the_report(write_run, tmp_path):
    recipe = dict(load_run(write_run("plain")).recipe, description="half \ud800 of it")
    assert "half \ufffd of it" in read_report([write_run("odd", recipe=recipe)], tmp_path).text


def test_the_page_of_a_killed_run_has_a_note(write_run, tmp_path):
    text = read_report([write_run(killed=True, tail='{"kind": "step", "st')], tmp_path).text
    assert "This run wrote no results" in text
    assert "unfinished" in text
    assert re.search(r"half-written lines, ignored\s*1", text)


def test_several_runs_open_with_the_table_and_mark_what_differs(write_run, tmp_path):
    first = write_run("one")
    recipe = dict(load_run(first).recipe, optimizer={"lr": 0.001, "betas": [0.9, 0.95]})
    page = read_report([first, write_run("two", recipe=recipe)], tmp_path)
    assert page.text.index("Runs") < page.text.index("Loss")
    assert "optimizer.lr=0.001" in page.text
    assert len(page.all("mark")) == 1  # in the recipe of the first run
    assert len(page.all("details")) == 2  # that recipe, and the held-out losses of both


def test_a_mixture_of_many_sources_is_folded_and_one_of_few_is_not(write_run, tmp_path):
    drawn = {"promised_share": 0.05, "share": 0.05, "epochs": 1.0}
    for count in (3, 20):
        mixture = {f"source{place}": drawn for place in range(count)}
        run = write_run(f"of{count}", results=results_tree(60) | {"mixture": mixture})
        assert (f"{count} sources" in read_report([run], tmp_path).text) == (count == 20)


def test_numbers_are_right_aligned_and_words_left_aligned(write_run, tmp_path):
    runs = [write_run(name) for name in ("a", "b")]
    html = write_report(runs, tmp_path / "report.html", script="x.js").read_text()
    head = html[html.index('<table class="summary">') :].partition("</thead>")[0]
    kinds = re.findall(r'<th scope="col"( class="text")?>([^<]*)</th>', head)
    assert [name for kind, name in kinds if kind] == ["run", "differs in"]


def test_a_long_list_of_nodes_is_cut_and_counted(write_run):
    nodes = [f"n{number}" for number in range(1_200)]
    begun = mark_line("start", 0, ranks=9_600, nodes=nodes, job="77_1")
    ended = mark_line("job_end", 1, nodes=nodes[:MOST_NAMED])
    run = write_run(lines=[begun, step_line(1), ended])
    start, over = events_grid(load_entries([run])[0]).rows
    named = "nodes n0, n1, n2, n3, n4, n5, n6, n7"
    assert start[2:4] == ("start", "due")
    assert start[-1] == f"ranks 9,600; {named} and 1,192 more; job 77_1"
    assert (over[2], over[-1]) == ("job end", named)


def test_a_report_creates_its_folder_and_leaves_no_draft(write_run, tmp_path):
    destination = write_report([write_run()], tmp_path / "new" / "report.html", script="x.js")
    assert list(destination.parent.iterdir()) == [destination]


def test_a_failed_write_keeps_the_old_report(write_run, tmp_path, monkeypatch):
    destination = tmp_path / "report.html"
    destination.write_text("old")

    def full_disk(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(RecipeError, match=r"report\.html: cannot be written: no space left"):
        write_report([write_run()], destination, script="x.js")
    assert destination.read_text() == "old"
    assert not list(tmp_path.glob(".report*"))


def test_a_folder_as_destination_is_refused(write_run, tmp_path):
    with pytest.raises(RecipeError, match="is a folder"):
        write_report([write_run()], tmp_path)


def test_without_plotly_a_page_is_refused_if_requested_and_else_not_written(
    tmp_path, monkeypatch
):
    check_plotly("file")
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(RecipeError, match="file: no page: plotly"):
        check_plotly("file")
    lines: list[str] = []
    page = tmp_path / "page.html"
    assert write_report_if_possible([tmp_path], page, lines.append) is None
    assert write_card_if_possible({}, page, lines.append) is None
    said = ["no report written", "no data card page written"]
    assert [line.partition(":")[0] for line in lines] == said
    assert not page.exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scheme):
    """WCAG 2.1, success criterion 1.4.3: 4.5 to 1 for text of this size."""
    style = (Path(html.__file__).parent / "page.css").read_text()
    block = style.split(":root {")[{"light": 1, "dark": 2}[scheme]].split("}")[0]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    for ink in ("ink", "soft", "link", "good", "bad"):
        for ground in ("paper", "panel"):
            both = (_luminance(colours[ink]), _luminance(colours[ground]))
            assert (max(both) + 0.05) / (min(both) + 0.05) >= 4.5, (ink, ground)


def _luminance(colour):
    """WCAG 2.1, definition of relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
