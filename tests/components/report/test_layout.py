"""Pages hold on a phone; of several runs what belongs together is one table, and short."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from components.report.data_card import data_card
from components.report.document import ReportDocument, ReportSection, write_document
from components.report.html import render_document, share_script
from components.report.page import write_report
from components.report.plan_page import plan_document
from components.report.tables import Grid
from components.report.write import write_report_if_possible
from tests.components.report.conftest import (
    WriteRun,
    mark_line,
    read_report,
    recipe_tree,
    results_tree,
)
from tests.components.report.outline import Outline, check_outline
from tests.components.report.test_plan_page import planned
from tests.recipes.compositions import at_home

RECIPES = ("teuken7b", "bloom7b1", "mula7b_a1b", "gpt20b")
LONG = "0123456789abcdef" * 4
CHROMIUM = shutil.which("chromium")


@pytest.fixture
def four(write_run: WriteRun) -> list[Path]:
    """Write a run of each of four recipes that differ in all that recipes can differ in."""
    mixture = {
        f"source_{place}": {"promised_share": 0.05, "share": 0.05, "samples": 9, "epochs": 1.0}
        for place in range(20)
    }
    results = results_tree(60) | {"mixture": mixture}
    return [
        write_run(f"{place}_{name}", recipe=tree, results=results)
        for place, name in enumerate(RECIPES)
        if (tree := at_home(name).model_dump(mode="json"))
    ]


def card_tree() -> dict[str, Any]:
    """Give the card of data with long names, hashes and words, as there are."""
    counts = {
        "documents_in": 9, "documents_out": 8, "bytes_in": 900, "bytes_out": 800,
        "removed": {"too short": 1}, "replaced": {},
    }  # fmt: skip
    source = {
        "language": "de", "licence": "CC0-1.0", "origin": f"https://example.org/{LONG}",
        "documents": 12, "train_tokens": 4321, "held_out_tokens": 77,
        "languages": {"de": 12}, "samples": [LONG * 9],
        "inputs": [{"name": f"{LONG}.jsonl", "bytes": 9000, "sha256": LONG}],
        "mixture": {"promised_share": 1.0, "share": 1.0, "samples": 12, "epochs": 1.5},
    }  # fmt: skip
    stage = {
        "sources": {"village": counts},
        "examples": {"village": [{"why": "too short", "text": LONG}]},
    }
    figures = {"tokens_per_word": 1.5, "bytes_per_token": 4.5, "documents": 12}
    totals = {
        "train_tokens": 4321, "held_out_tokens": 77, "documents": 12, "input_bytes": 9000,
    }  # fmt: skip
    return {
        "name": "walnut-mini", "key": LONG, "totals": totals, "sources": {"village": source},
        "tokenizer": {"settings": {"_target_": "components.x.Unigram"}, "vocab_size": 4064},
        "stages": {"filter": stage}, "fertility": {"de": figures},
    }  # fmt: skip


def write_pages(report: Path, four: list[Path], folder: Path) -> dict[str, Path]:
    plan = plan_document(*planned("teuken7b"), why="why not?")
    return {
        "report": write_report([report], folder / "report.html"),
        "comparison": write_report(four, folder / "compared.html"),
        "card": write_document(data_card(card_tree()), folder / "card.html"),
        "plan": write_document(plan, folder / "plan.html"),
    }


def test_pages_keep_to_the_outline_and_a_comparison_is_short(write_run, four, tmp_path) -> None:
    pages = {
        name: check_outline(page.read_text("utf-8"))
        for name, page in write_pages(write_run(), four, tmp_path).items()
    }
    for page in pages.values():
        assert page.all("nav")
        assert all(one["href"].startswith("#") for one in page.all("a"))
        assert not [one for _, one, _ in page.elements if "src" in one]
    page = pages["comparison"]
    assert page.unfolded("tr") <= 60 < 200 < len(page.all("tr"))
    assert len(page.html) - max(map(len, page.html.split("<script>"))) < 1_000_000
    over = ("Training and held-out loss", "Learning rate", "Gradient norm", "Tokens per second")
    labels = [one["aria-label"] for one in page.all("figure")]
    assert [*labels[:1], *labels[2:]] == [f"{name} over tokens" for name in over]


def test_the_heading_names_a_few_recipes_and_counts_many(write_run, tmp_path: Path) -> None:
    runs = [
        write_run(f"run{place}", recipe=recipe_tree() | {"name": f"cake{place}"})
        for place in range(9)
    ]
    for count, heading in ((4, "cake0, cake1, cake2, cake3"), (9, "cake2 and 6 more")):
        assert f"{heading}</h1>" in read_report(runs[:count], tmp_path).html


def test_a_comparison_links_each_run_s_page_of_events(write_run, tmp_path: Path) -> None:
    runs = [write_run(f"all/{name}", lines=[mark_line("skip", 1)]) for name in ("a", "b:c")]
    for run in runs:
        assert "<h2>Story</h2>" in read_report([run], run).html
    page = read_report(runs, tmp_path / "all")
    assert "<h2>Story</h2>" not in page.html
    links = [one["href"] for one in page.all("a") if "#" not in one["href"]]
    assert links == ["a/report.html", "b%3Ac/report.html"]
    assert "b%3Ac" not in read_report(runs, tmp_path / "other").html


def test_names_in_other_alphabets_have_an_anchor() -> None:
    titles = ("A & b", "A & b", "Значит", "three", "four")
    sections = [ReportSection(title, ["text"]) for title in titles]
    html = render_document(ReportDocument(kind="Kind", title="Title", sections=sections))
    page = Outline(html)
    names = ["a-b", "a-b-again", "section", "three", "four"]
    assert [one["href"] for one in page.all("a")] == [f"#{name}" for name in names]
    assert [one["id"] for one in page.all("section")] == names
    assert "A &amp; b" in html


def test_runs_of_a_folder_share_its_script(write_run, tmp_path: Path) -> None:
    run = write_run("sweep/a")
    share_script(tmp_path / "sweep")
    (script,) = (tmp_path / "sweep").glob("plotly-*.min.js")
    page = write_report_if_possible([run], run / "report.html", print)
    assert page is not None
    html = page.read_text("utf-8")
    assert len(html) < 500_000
    sources = [one["src"] for one in Outline(html).all("script") if "src" in one]
    assert sources == [f"../{script.name}"]
    assert re.search(r"script-src (?:'sha256-\S+' )+'self' file:;", html)
    before = script.stat().st_ino
    share_script(tmp_path / "sweep")
    assert script.stat().st_ino == before  # it is not written twice


@pytest.mark.parametrize("planted", ["alert(1)", "same length"])
def test_a_script_that_differs_is_not_shared(write_run, tmp_path: Path, planted: str) -> None:
    run = write_run("sweep/a")
    share_script(tmp_path / "sweep")
    (script,) = (tmp_path / "sweep").glob("plotly-*.min.js")
    own = script.read_text("utf-8")
    script.write_text(planted if planted == "alert(1)" else f"{own[:-1]} ", "utf-8")
    page = write_report_if_possible([run], run / "report.html", print)
    assert page is not None
    assert len(page.read_text("utf-8")) > 4_000_000
    share_script(tmp_path / "sweep")
    assert script.read_text("utf-8") == own


def test_without_plotly_no_script_is_shared(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("components.report.html.find_spec", lambda name: None)
    share_script(tmp_path)
    assert not list(tmp_path.iterdir())


def measured(page: Path, width: int) -> dict[str, int]:
    """Ask a browser how wide and high a page is in a window of this width."""
    probe = page.with_name("probe.html")
    said = "JSON.stringify([document.documentElement.scrollWidth, document.body.scrollHeight])"
    script = f'<script>addEventListener("load", () => parent.postMessage({said}, "*"))</script>'
    html = page.read_text("utf-8").replace("</body>", f"{script}</body>")
    # The page's own policy would stop the probe.
    probe.write_text(html.replace("Content-Security-Policy", "None"), "utf-8")
    frame = page.with_name("frame.html")
    frame.write_text(
        f'<iframe src="probe.html" width="{width}" height="844" style="border:0"></iframe>'
        "<script>addEventListener('message', e => { document.title = e.data })</script>"
    )
    done = subprocess.run(
        [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--virtual-time-budget=20000", f"file://{frame}"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    wide, high = json.loads(title)
    return {"width": wide, "height": high}


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="a browser measures")
def test_no_page_is_wider_than_a_phone(write_run, four: list[Path], tmp_path: Path) -> None:
    sizes = {
        (name, width): measured(page, width)
        for name, page in write_pages(write_run(), four, tmp_path).items()
        for width in (390, 1_400)
    }
    assert all(size["width"] <= width for (_, width), size in sizes.items()), sizes
    assert sizes["comparison", 390]["height"] < 12_000
    assert sizes["comparison", 1_400]["height"] < 9_000


def test_a_page_without_charts_has_no_script(tmp_path: Path) -> None:
    table = Grid(columns=("a", "b"), rows=[("1", "2")])
    sections = [ReportSection("Table", (table,))]
    document = ReportDocument(kind="Page", title="t", sections=sections, notices=("n",))
    for shared in (None, "../plotly.min.js"):
        html = write_document(document, tmp_path / "page.html", shared).read_text("utf-8")
        assert not Outline(html).all("script")
        assert "script-src" not in html  # default-src 'none' forbids every script


def test_a_section_without_content_is_left_out(write_run: WriteRun, tmp_path: Path) -> None:
    recipe = recipe_tree() | {"published": {}, "assumed": {}}
    run = write_run(recipe=recipe, killed=True, lines=[])
    page = read_report([run], tmp_path)
    ids = [one["id"] for one in page.all("section") if "id" in one]
    left_out = {"loss", "steps", "assumed", "published-beside-this-run", "story", "data"}
    assert not left_out & {*ids}
    assert {"energy", "goodput", "environment"} <= {*ids}
