"""Others' text stays text on every page: it makes no element, no attribute and no script."""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from command.study.page import study_document
from components.errors import RecipeError
from components.planner.result import Plan
from components.report import html
from components.report.data_card import data_card
from components.report.document import write_document
from components.report.figures import empty_figure
from components.report.page import write_report
from components.report.plan_page import plan_document
from components.report.prediction import PredictedRecipe, prediction_document
from components.report.proposal import LadderSummary, build_proposal
from components.report.tree import PlacedNode, write_tree
from components.scaling.law import Law
from components.scaling.prediction import Prediction, predict_target
from tests.command.study import test_ladder, test_page
from tests.components.report.conftest import (
    WriteRun,
    environment_tree,
    history_lines,
    mark_line,
    recipe_tree,
    results_tree,
)
from tests.components.report.outline import Outline, check_outline
from tests.components.report.test_layout import card_tree
from tests.components.report.test_plan_page import planned

ROOT = Path(__file__).parents[3]
CHROMIUM = shutil.which("chromium")
HIDDEN = "\u202e\u200b\u2066\x1b\x9b"
PAYLOAD = (
    "</script></title></style></pre><script>document.title='PWNED'</script><!--]]>"
    "<img src=x onerror=\"document.title='PWNED'\"><a href='javascript:pwned()'>x</a>"
    "\" onmouseover=pwned() ' style=x {{7*7}} <svg/onload=pwned()>\u2028%{x}<h2>"
    f"</h2></header>{HIDDEN}שלום 漢字 " + "W" * 300
)
# Words that the code compares, never shows as others' text.
_FIXED = frozenset({
    *("kind", "_target_", "status", "verdict", "recompute", "of", "state", "scheduler")
})
# What maps names of others' choice.
_NAMED = frozenset({
    *("assumed", "published", "sources", "shares", "by_source", "unigram_by_source"),
    *("stages", "fertility", "removed", "replaced", "languages", "evidence", "versions"),
    *("slopes", "epochs", "data"),
})  # fmt: skip


def plant(value: Any, name: str = "") -> Any:
    """Add the payload to every string of a tree, and to the keys that others choose."""
    if isinstance(value, str):
        return value if name in _FIXED else value + PAYLOAD
    if isinstance(value, Mapping):
        suffix = PAYLOAD if name in _NAMED else ""
        return {f"{key}{suffix}": plant(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plant(one, name) for one in value)
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        return value.model_copy(update={k: plant(getattr(value, k), k) for k in names})
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return replace(value, **{key: plant(one, key) for key, one in own.items()})
    return value


Plant = Callable[[Any], Any]
Writer = Callable[[Path, WriteRun, Plant], Path]


def _run(write_run: WriteRun, name: str, planted: Plant, place: int = 0) -> Path:
    """Write a run of the text that ``planted`` gives."""
    kept = {"data": {"shares": planted(recipe_tree()["data"]["shares"])}}
    mixture = {
        planted("en"): {"promised_share": 0.5, "share": 0.5, "samples": 9, "epochs": 1.0}
    }
    lines = planted([*history_lines(3), mark_line("skip", 3, why="x", nodes=["n1"])])
    results = planted(results_tree(3)) | {"mixture": mixture}
    run = write_run(name, recipe=planted(recipe_tree()) | kept, results=results, lines=lines)
    environment = environment_tree()
    environment["command"] = [f"schedule={planted('x')}{place}", "name=n"]
    (run / "environment.json").write_text(json.dumps(planted(environment)))
    return run


def _report(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    return write_report([_run(write_run, "report <b>", planted)], page)


def _comparison(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    runs = [_run(write_run, f"{place}'<i>&\u202e", planted, place) for place in range(3)]
    return write_report(runs, page)


def _tree(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    trunk = PlacedNode(
        name="trunk", kind="run", of=None, begins=(0,), ends=9, added=0, state="finished",
        folder=_run(write_run, "trunk <u>", planted),
    )  # fmt: skip
    child = _run(write_run, "child <s>", planted)
    below = replace(trunk, name="below", begins=(5,), added=5, folder=child)
    merge = replace(trunk, name="merged", of=None, kind="merge", folder=page.parent)
    nodes = [
        replace(one, name=planted(one.name), state=planted("waits")) for one in (below, merge)
    ]
    return write_tree(replace(trunk, name=planted("trunk")), nodes, page)


def _card(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    return write_document(data_card(planted(card_tree())), page)


def _plan(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    plan, picture = planned("teuken7b")
    document = plan_document(_planted(plan, planted), picture, why=planted("why"))
    return write_document(document, page)


def _planted(plan: Plan, planted: Plant) -> Plan:
    """Plant what a plan shows of others' text; what it computes with stays."""
    recipe, run = plan.recipe, plan.run
    assert run is not None
    named = planted({key: getattr(recipe, key) for key in ("name", "published", "assumed")})
    scale, cluster = (
        section.model_copy(update={"name": planted(section.name)})
        for section in (recipe.scale, recipe.cluster)
    )
    texts = ((one.path, one.problem, one.remedy) for one in plan.missing)
    missing = [RecipeError(*map(planted, text)) for text in texts]
    return replace(
        plan,
        recipe=recipe.model_copy(update={**named, "scale": scale, "cluster": cluster}),
        missing=tuple(missing),
        limit=RecipeError(*map(planted, ("cluster.nodes", "problem", "remedy"))),
        run=replace(run, cost=planted(run.cost)),
    )


def _study(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    tree = json.loads(json.dumps(test_page.TREE).replace("<b>a</b>", "a"))
    if planted is plant:  # a study's file may hold printable text alone
        name = "a" + "".join(one for one in PAYLOAD if one.isprintable())
        tree = json.loads(json.dumps(tree).replace('"a"', json.dumps(name)))
    study = test_page.a_study(**tree)
    tries = test_page.tries(study)
    for name in ("figure", "published"):
        part = getattr(study, name)
        shown = [k for k, v in part if isinstance(v, str)]
        part = part.model_copy(update={k: planted(getattr(part, k)) for k in shown})
        study = study.model_copy(update={name: part})
    study = study.model_copy(update={"description": planted("why"), "name": planted("weak")})
    tries = [replace(one, why=planted(one.why)) for one in tries]
    return write_document(study_document(study, tries, [planted("cluster=x")]), page)


def _prediction(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    found, law = _predicted()
    said = PredictedRecipe(
        title="t", unit="nats", convention="c", notes=("n",), rows=(("a", "b"),), again="again"
    )
    plan = _planted(planned("teuken7b")[0], planted)
    return write_document(prediction_document(planted(said), planted(found), law, plan), page)


@cache
def _predicted() -> tuple[Prediction, Law]:
    sizes = [(n, n * r) for n in (10**5, 2 * 10**5, 4 * 10**5) for r in (10, 30, 90)]
    rows = [(n, d, test_ladder.PLANTED.predict_loss(n, d), n * d > 3e12) for n, d in sizes]
    rows.append((10**6, 10**8, test_ladder.PLANTED.predict_loss(10**6, 10**8), True))
    return predict_target(rows, 10**9, 10**11)


def _proposal(page: Path, write_run: WriteRun, planted: Plant) -> Path:
    plan = _planted(planned("teuken7b")[0], planted)
    recipe = plan.recipe.model_copy(update={"description": planted(plan.recipe.description)})
    says = LadderSummary(study="s", rows=(("a", "b"),), notes=("n",))
    return write_document(build_proposal(recipe, plan, planted(says)), page)


# By the function that returns or writes pages of this kind.
WRITERS: dict[str, dict[str, Writer]] = {
    "report_document": {"report": _report, "comparison": _comparison, "tree": _tree},
    "data_card": {"card": _card},
    "plan_document": {"plan": _plan},
    "study_document": {"study": _study},
    "prediction_document": {"prediction": _prediction},
    "build_proposal": {"proposal": _proposal},
}
PAGES = {name: write for kinds in WRITERS.values() for name, write in kinds.items()}
# Plotly's script; what the others return; the choice of a plan or its prediction.
_OWN = {"share_script", "write_document", "build_document"}


def test_every_page_function_is_tested_with_hostile_text() -> None:
    found = set()
    for folder in ("components", "command", "cluster", "data_prep"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text("utf-8")
            is_near = "write_page(" in text or "-> ReportDocument" in text
            for function in ast.walk(ast.parse(text if is_near else "")):
                if isinstance(function, ast.FunctionDef):
                    calls = (one for one in ast.walk(function) if isinstance(one, ast.Call))
                    is_writer = any(getattr(c.func, "id", "") == "write_page" for c in calls)
                    if is_writer or getattr(function.returns, "id", "") == "ReportDocument":
                        found.add(function.name)
    assert found - _OWN == WRITERS.keys()


@pytest.mark.parametrize("kind", PAGES)
def test_hostile_text_creates_no_element(kind, write_run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(html, "_read_library", lambda: "/* megabytes of plotly */")
    page = PAGES[kind](tmp_path / "plain.html", write_run, lambda value: value)
    plain = Outline(page.read_text("utf-8"))
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    page = PAGES[kind](tmp_path / "hostile.html", write_run, plant)
    hostile = check_outline(page.read_text("utf-8"))
    assert hostile.html.count("PWNED") > 3
    shapes, expected = (
        {(tag, tuple(sorted(own))) for tag, own, _ in one.elements} for one in (hostile, plain)
    )
    assert shapes - expected <= {("nav", ("aria-label", "class"))}
    assert not [name for _, names in shapes for name in names if name.startswith("on")]
    assert all(one["href"].startswith("#") for one in hostile.all("a"))
    assert not set(HIDDEN) & set(hostile.html)
    for script in re.findall(r"(?s)<script>(.*?)</script>", hostile.html):
        assert "Plotly.newPlot" in script or "PWNED" not in script
        assert "Plotly.newPlot" not in script or "\\u202e" not in script


def test_text_in_a_figure_is_escaped_everywhere() -> None:
    figure = empty_figure("<a>", "<b>", height=90)
    figure.add_scatter(x=["<c>"], y=[1], text=["<d>"], name="<e>", hovertemplate="a<br>b")
    figure.add_annotation(text="<f>\u202e")
    drawn = html.figure_html("x", figure)
    for letter in "abcdef":
        assert f"\\u0026lt;{letter}\\u0026gt;" in drawn or f"&lt;{letter}&gt;" in drawn
    assert "\u202e" not in drawn
    assert "a\\u003cbr\\u003eb" in drawn


def _dom(page: Path, profile: Path) -> str:
    """Return what a browser makes of a page."""
    words = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
        *("--disable-quic", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--virtual-time-budget=20000"),
        *(f"--user-data-dir={profile}", f"file://{page}"),
    ]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout


def test_a_proposal_in_markdown_shows_hidden_characters(write_run, tmp_path: Path) -> None:
    text = _proposal(tmp_path / "page.md", write_run, plant).read_text("utf-8")
    assert not set(HIDDEN) & set(text)
    assert not re.search(r"(?<!\\)[<\[]", text)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="a browser runs the pages")
@pytest.mark.parametrize("kind", PAGES)
def test_a_browser_runs_no_injected_script(kind: str, write_run, tmp_path: Path) -> None:
    page = PAGES[kind](tmp_path / "hostile.html", write_run, plant)
    made = _dom(page, tmp_path / "profile")
    dom = Outline(re.sub(r"<svg.*?</svg>", "", made, flags=re.DOTALL))
    assert "<title>PWNED</title>" not in made
    assert not {"img", "iframe", "object"} & {tag for tag, _, _ in dom.elements}
    charts = page.read_text("utf-8").count('class="plotly-graph-div"')
    assert len(re.findall(r'<svg class="main-svg"', made)) >= charts


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="a browser runs the pages")
@pytest.mark.parametrize("policy", [True, False])
def test_an_injected_script_runs_only_without_the_policy(policy: bool, tmp_path: Path) -> None:
    page = write_document(data_card(card_tree()), tmp_path / "card.html")
    text = page.read_text("utf-8").replace("</main>", f"{PAYLOAD[26:]}</main>")
    page.write_text(
        text if policy else text.replace("Content-Security-Policy", "None"), "utf-8"
    )
    assert ("<title>PWNED</title>" in _dom(page, tmp_path / "profile")) != policy
