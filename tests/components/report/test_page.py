"""The page as a browser gets it: whole, offline, harmless."""

import errno
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report import html
from components.report.outcome import load_entries, load_run
from components.report.page import write_report
from components.report.tables import summary_grid, terminal_table
from tests.components.report.conftest import (
    held_out_line,
    mark_line,
    results_tree,
    step_line,
)

_HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


class _Page(HTMLParser):
    """Collect tags, attributes, and the text outside scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.links, self.text, self.styles, self._inside = [], [], "", "", ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = tag if tag in {"script", "style"} else ""
        self.links += [v for k, v in attrs if k in {"src", "href", "srcset", "data", "action"}]
        self.styles += " ".join(v or "" for k, v in attrs if k == "style")
        assert not [k for k, _ in attrs if k.startswith("on")]

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "style":
            self.styles += data
        elif not self._inside:
            self.text += data


def _page(runs, tmp_path):
    return _Page(write_report(runs, tmp_path / "report.html").read_text("utf-8"))


def test_nothing_is_loaded_from_anywhere(write_run, tmp_path):
    html = write_report([write_run()], tmp_path / "report.html").read_text()
    page = _Page(html)
    assert all(link.startswith("#") for link in page.links)  # its own contents
    assert not {"link", "iframe", "img", "object", "embed", "base"} & set(page.tags)
    assert not re.search(r"url\(|@import", page.styles)
    assert "default-src 'none'" in html


def test_shows_the_key_figures_of_one_run(write_run, tmp_path):
    text = _page([write_run()], tmp_path).text
    for figure in (
        "walnut7b",
        "2.535",
        "2.715",
        "6.543",
        "492 k",
        "16.4 k",
        "1.23 M",
        "1,234,567",
    ):
        assert figure in text
    for sentence in ("Miniature.", "full attention", "causal attention", "no source says"):
        assert sentence in text
    assert "total_tokens: 491_520" in text


def test_a_full_size_run_is_not_called_a_miniature(write_run, tmp_path):
    recipe = dict(load_run(write_run("a")).recipe, scale={"name": "full", "shrink": "none"})
    assert "iniature" not in _page([write_run("b", recipe=recipe)], tmp_path).text


def test_hostile_names_are_text_and_nothing_else(write_run, tmp_path):
    recipe = dict(load_run(write_run("plain")).recipe, name=_HOSTILE, description=_HOSTILE)
    recipe["assumed"] = {_HOSTILE: {"value": _HOSTILE, "reason": _HOSTILE}}
    line = {
        "kind": "held_out",
        "step": 1,
        "tokens": 9,
        "loss": 2.0,
        "by_source": {_HOSTILE: 2.0},
        "seconds": 0.1,
    }
    event = mark_line("skip", 1, **{_HOSTILE: _HOSTILE}) | {"cause": _HOSTILE}
    plain = _page([tmp_path / "plain"], tmp_path)
    page = _page(
        [write_run("hostile", recipe=recipe, lines=[step_line(1), line, event], killed=True)],
        tmp_path,
    )
    assert page.tags.count("script") == plain.tags.count("script")
    assert "img" not in page.tags
    assert _HOSTILE in page.text


def test_half_a_character_in_a_recipe_does_not_stop_the_report(write_run, tmp_path):
    recipe = dict(load_run(write_run("plain")).recipe, description="half \ud800 of it")
    assert "half \ufffd of it" in _page([write_run("odd", recipe=recipe)], tmp_path).text


def test_a_killed_run_has_a_page_that_says_so(write_run, tmp_path):
    text = _page([write_run(killed=True, tail='{"kind": "step", "st')], tmp_path).text
    assert "This run wrote no results" in text
    assert "unfinished" in text
    assert re.search(r"half-written lines, ignored\s*1", text)


def test_a_run_killed_before_its_first_step_has_a_page(write_run, tmp_path):
    page = _page([write_run(killed=True, lines=[])], tmp_path)
    assert "Held-out loss by source" not in page.text


def test_several_runs_open_with_the_table_and_mark_what_differs(write_run, tmp_path):
    first = write_run("one")
    recipe = dict(load_run(first).recipe, optimizer={"lr": 0.001, "betas": [0.9, 0.95]})
    page = _page([first, write_run("two", recipe=recipe)], tmp_path)
    assert page.text.index("Runs") < page.text.index("Loss")
    assert "optimizer.lr=0.001" in page.text
    assert page.tags.count("mark") == 1  # in the recipe of the first run
    assert page.tags.count("details") == 2  # that recipe, and the held-out losses of both


def test_the_script_library_is_in_the_file_once(write_run, tmp_path):
    page = write_report([write_run("a"), write_run("b")], tmp_path / "report.html")
    assert page.stat().st_size < 6_000_000


def test_a_mixture_of_many_sources_is_folded_and_one_of_few_is_not(write_run, tmp_path):
    drawn = {"promised_share": 0.05, "share": 0.05, "epochs": 1.0}
    folded = []
    for count in (3, 20):
        mixture = {f"source{place}": drawn for place in range(count)}
        run = write_run(f"of{count}", results=results_tree(60) | {"mixture": mixture})
        folded.append(f"{count} sources" in _page([run], tmp_path).text)
    assert folded == [False, True]


def test_numbers_stand_on_the_right_and_words_on_the_left(write_run, tmp_path):
    runs = [write_run(name) for name in ("a", "b")]
    html = write_report(runs, tmp_path / "report.html").read_text()
    head = html[html.index('<table class="summary">') :].partition("</thead>")[0]
    kinds = re.findall(r'<th scope="col"( class="text")?>([^<]*)</th>', head)
    assert [name for kind, name in kinds if kind] == ["run", "differs in"]


def test_makes_the_folder_and_leaves_no_draft(write_run, tmp_path):
    destination = write_report([write_run()], tmp_path / "new" / "report.html")
    assert list(destination.parent.iterdir()) == [destination]


def test_a_failed_write_keeps_the_old_report(write_run, tmp_path, monkeypatch):
    destination = tmp_path / "report.html"
    destination.write_text("old")

    def full_disk(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(RecipeError, match=r"report\.html: cannot be written: no space left"):
        write_report([write_run()], destination)
    assert destination.read_text() == "old"
    assert not list(tmp_path.glob(".report*"))


def test_refuses_a_folder_as_destination(write_run, tmp_path):
    with pytest.raises(RecipeError, match="is a folder"):
        write_report([write_run()], tmp_path)


def test_the_package_offers_its_three_functions(write_run):
    assert terminal_table(summary_grid(load_entries([write_run()]))).row_count == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme):
    """WCAG 2.1, success criterion 1.4.3: 4.5 to 1 for text of this size."""
    style = (Path(html.__file__).parent / "page.css").read_text()
    block = style.split(":root {")[{"light": 1, "dark": 2}[scheme]].split("}")[0]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    for ink in ("ink", "soft", "link", "good", "bad"):
        for ground in ("paper", "panel"):
            assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def _contrast(one, other):
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour):
    """WCAG 2.1, definition of relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_run_stopped_before_its_first_evaluation_claims_no_held_out_loss(write_run, tmp_path):
    lines = [held_out_line(0), step_line(1), step_line(2)]
    held_out = dict.fromkeys(("step", "tokens", "final", "final_unweighted", "rising"))
    stated = results_tree(2)["held_out"] | held_out | {"by_source": {}}
    stopped = results_tree(2) | {"status": "stopped", "held_out": stated}
    text = _page([write_run(lines=lines, results=stopped)], tmp_path).text
    assert "no evaluation since step 0" in text
    assert "over the last quarter" not in text
