"""What was evaluated and profiled, in the report: by text, by task, by part of a step."""

import json
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.figures import score_figure
from components.report.html import render_document
from components.report.measurements import evaluation_grids, profile_grid, read_evaluations
from components.report.outcome import load_entries
from components.report.page import report_document

FIGURES = {
    "loss": 2.5, "perplexity": 12.182, "bits_per_byte": 1.25, "tokens": 4_100,
    "documents": 9,
}  # fmt: skip
UNKNOWN = FIGURES | {"bits_per_byte": None}
TASK = {
    "metrics": {"acc": 0.25, "acc_stderr": 0.0433, "exact_match,strict": 0.5},
    "samples": 100, "num_fewshot": 5,
}  # fmt: skip
PROFILE = {
    "steps": [5, 6], "clock": "device", "step_seconds": 1.25,
    "parts": {
        "products": {"seconds": 1.0, "backward_seconds": 0.75, "forward_seconds": 0.25},
        "loss": {"seconds": 0.0}, "host": {"seconds": 0.25},
    },
}  # fmt: skip


def write_tree(file: Path, tree: dict[str, object]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(tree))


def evaluated(run: Path, tokens: int, **sections: object) -> None:
    name = f"tokens-{tokens:015d}"
    write_tree(run / f"evaluation/{name}.json", {"checkpoint": name, **sections})


def profiled(run: Path, rank: int) -> None:
    write_tree(run / f"profile/rank-{rank}.json", {"rank": rank, **PROFILE})


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


def test_a_metric_is_followed_by_its_standard_error(write_run) -> None:
    run = write_run("a")
    evaluated(run, 1_000, tasks={"arc": TASK})
    rows = evaluation_grids(load_entries([run]))["evaluated_tasks"].rows
    assert [row[1:] for row in rows] == [
        ("arc", "acc", "0.2500", "0.0433", "100", "5"),
        ("arc", "exact_match,strict", "0.5000", "—", "100", "5"),
    ]


def test_the_page_has_sections_only_for_measured_values(write_run) -> None:
    run, other = write_run("a"), write_run("b")
    evaluated(run, 1_000, tasks={"<arc>": TASK})
    profiled(run, 0)
    page, without = (
        render_document(report_document(load_entries(runs)), "plotly.js")
        for runs in ([run, other], [other])
    )
    assert "&lt;arc&gt;" in page
    for title in ("<h2>Evaluated</h2>", "<h2>Profile</h2>"):
        assert title in page
        assert title not in without


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("evaluation/tokens-000000000001000.json", r"1000\.json: is not JSON"),
        ("profile/rank-0.json", r"rank-0\.json: is not JSON(.|\n)*profile again"),
    ],
)
def test_a_damaged_measurement_is_named(write_run, file: str, message: str) -> None:
    run = write_run("a")
    write_tree(run / file, {})
    (run / file).write_text('{"rank"')
    with pytest.raises(RecipeError, match=message):
        (evaluation_grids if "evaluation" in file else profile_grid)(load_entries([run]))


def scores(score: float, published: float | None) -> dict[str, object]:
    task = {
        "score": score, "standard_error": 1.25, "metric": "acc_norm", "num_fewshot": 25,
        "samples": 1_172, "published": published,
    }  # fmt: skip
    return {"mine": {"tasks": {"arc": task}, "mean": score, "published": None}}


def test_a_score_is_next_to_the_published_score(write_run) -> None:
    run = write_run("a")
    evaluated(run, 1_000, tokens_trained=1_000, scores=scores(55.5, 55.8))
    rows = evaluation_grids(load_entries([run]))["evaluated_scores"].rows
    assert [row[1:] for row in rows] == [
        ("mine", "arc", "acc_norm", "25", "1,172", "55.50", "1.25", "55.8", "-0.3"),
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
    document = report_document(entries[:1])
    assert "Scores over tokens" in render_document(document, "plotly.js")


def test_a_profile_has_the_times_of_each_rank(write_run) -> None:
    run = write_run("a")
    for rank in (10, 2):
        profiled(run, rank)
    (run / "profile/rank-2.trace.json.gz").write_bytes(b"")
    parts = profile_grid(load_entries([run])).rows
    assert parts[:3] == [
        ("2", "products", "1 s", "80.0%", "250 ms", "750 ms", ""),
        ("2", "host", "250 ms", "20.0%", "", "", ""),
        ("2", "step", "1.25 s", "100.0%", "", "", ""),
    ]
    assert [cells[0] for cells in parts[3:]] == ["10"] * 3


def test_rows_of_several_profiled_runs_name_their_run(write_run) -> None:
    runs = [write_run(name) for name in ("a", "b")]
    for run in runs:
        profiled(run, 0)
    grid = profile_grid(load_entries(runs))
    assert grid.columns[:3] == ("run", "rank", "part")
    assert [row[:2] for row in grid.rows] == [("a", "0")] * 3 + [("b", "0")] * 3
    assert grid.text_columns == 3
