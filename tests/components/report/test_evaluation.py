"""What was evaluated, in the report: by text and by task."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.figures import score_figure
from components.report.html import render_document
from components.report.measurements import evaluation_grids, read_evaluations
from components.report.outcome import load_entries
from components.report.page import report_document

FIGURES = {
    "loss": 2.5, "perplexity": 12.182, "bits_per_byte": 1.25, "tokens": 4_100,
    "documents": 9,
}  # fmt: skip
UNKNOWN = FIGURES | {"bits_per_byte": None}
TASK = {
    "metrics": {"acc": 0.25, "acc_stderr": 0.0433, "exact_match,strict": 0.5},
    "samples": 100,
    "num_fewshot": 5,
}


def evaluated(run: Path, tokens: int, **sections: object) -> None:
    (run / "evaluation").mkdir(exist_ok=True)
    tree = {"checkpoint": f"tokens-{tokens:015d}", **sections}
    (run / "evaluation" / f"tokens-{tokens:015d}.json").write_text(json.dumps(tree))


def test_every_checkpoint_has_its_rows_in_the_order_of_tokens(write_run) -> None:
    run = write_run("a")
    held_out = {
        "by_source": {"de": FIGURES}, "by_language": {"de": FIGURES}, "all": UNKNOWN,
        "weighted_as_mixture": 2.25, "mean_over_sources": 2.75,
    }  # fmt: skip
    evaluated(run, 2_000, held_out=held_out)
    evaluated(run, 1_000, texts={"my.txt": FIGURES})
    grid = evaluation_grids(load_entries([run]))["evaluated_texts"]
    cells = ("2.500", "12.18", "1.250", "4,100", "9")
    late = ("tokens-000000000002000",)
    assert grid.rows == [
        ("tokens-000000000001000", "my.txt", *cells),
        (*late, "de", *cells),
        (*late, "language de", *cells),
        (*late, "all held-out tokens", "2.500", "12.18", "—", "4,100", "9"),
        (*late, "weighted as the mixture", "2.250", "—", "—", "—", "—"),
        (*late, "plain mean over sources", "2.750", "—", "—", "—", "—"),
    ]


def test_a_metric_stands_beside_its_standard_error(write_run) -> None:
    run = write_run("a")
    evaluated(run, 1_000, tasks={"arc": TASK})
    rows = evaluation_grids(load_entries([run]))["evaluated_tasks"].rows
    assert [row[1:] for row in rows] == [
        ("arc", "acc", "0.2500", "0.0433", "100", "5"),
        ("arc", "exact_match,strict", "0.5000", "—", "100", "5"),
    ]


def test_the_page_has_the_section_only_where_something_was_evaluated(write_run) -> None:
    run, other = write_run("a"), write_run("b")
    evaluated(run, 1_000, tasks={"<arc>": TASK})
    page = render_document(report_document(load_entries([run, other])))
    assert "<h2>Evaluated</h2>" in page
    assert "&lt;arc&gt;" in page
    assert "<h2>Evaluated</h2>" not in render_document(report_document(load_entries([other])))


def test_a_damaged_result_is_named(write_run) -> None:
    run = write_run("a")
    evaluated(run, 1_000)
    (run / "evaluation" / "tokens-000000000001000.json").write_text("{")
    with pytest.raises(RecipeError, match=r"tokens-000000000001000.json: is not JSON"):
        evaluation_grids(load_entries([run]))


def scores(score: float, published: float | None) -> dict[str, object]:
    task = {
        "score": score, "standard_error": 1.25, "metric": "acc_norm", "num_fewshot": 25,
        "samples": 1_172, "published": published,
    }  # fmt: skip
    return {"mine": {"tasks": {"arc": task}, "mean": score, "published": None}}


def test_a_score_stands_beside_the_published_one(write_run) -> None:
    run = write_run("a")
    evaluated(run, 1_000, tokens_trained=1_000, scores=scores(55.5, 55.8))
    rows = evaluation_grids(load_entries([run]))["evaluated_scores"].rows
    shape = ("acc_norm", "25", "1,172")
    assert [row[1:] for row in rows] == [
        ("mine", "arc", *shape, "55.50", "1.25", "55.8", "-0.3"),
        ("mine", "mean", "", "", "", "55.50", "—", "—", "—"),
    ]


def test_scores_of_two_checkpoints_are_a_curve_over_tokens(write_run) -> None:
    run, other = write_run("a"), write_run("b")
    for tokens, score in ((1_000, 25.0), (2_000, 30.0)):
        evaluated(run, tokens, tokens_trained=tokens, scores=scores(score, None))
    evaluated(other, 1_000, tokens_trained=1_000, scores=scores(26.0, None))
    entries = load_entries([run, other])
    trees = [read_evaluations(one.run.folder) for one in entries]
    figure = score_figure(entries[:1], trees[:1])
    assert figure is not None
    drawn = {trace.name: (trace.x, trace.y) for trace in figure.data}
    curve = ((1_000, 2_000), (25.0, 30.0))
    assert drawn == {"mine, mean": curve, "arc": curve}
    both = score_figure(entries, trees)
    assert both is not None
    assert [trace.name for trace in both.data] == ["a: mine, mean"]  # b has one point
    assert score_figure(entries[1:], trees[1:]) is None
    assert "Scores over tokens" in render_document(report_document(entries[:1]))
