"""The mixture of a report: promised beside drawn."""

from components.report.data_card import mixture_grid
from components.report.outcome import load_entries
from tests.components.report.conftest import results_tree


def drawn(promised: float, share: float, epochs: float) -> dict[str, float]:
    return {"promised_share": promised, "share": share, "samples": 7, "epochs": epochs}


def test_shares_and_epochs_of_every_source_stand_in_a_row(write_run):
    mixture = {"de": drawn(0.25, 0.2504, 1.5), "en": drawn(0.75, 0.7496, 0.25)}
    run = write_run("a", results=results_tree(60) | {"mixture": mixture})
    grid = mixture_grid(load_entries([run]))
    assert grid.columns == ("source", "promised", "drawn", "times read")
    assert grid.rows == [
        ("de", "25.000%", "25.040%", "1.50"),
        ("en", "75.000%", "74.960%", "0.25"),
    ]


def test_runs_that_drew_the_same_share_a_column(write_run):
    runs = [
        write_run(name, results=results_tree(60) | {"mixture": {source: drawn(1, 1, 1)}})
        for name, source in {"a": "de", "b": "fr", "c": "de"}.items()
    ]
    grid = mixture_grid(load_entries(runs))
    assert grid.columns == ("source", "a, c", "b")
    assert grid.rows == [("de", "100.000%", "—"), ("fr", "—", "100.000%")]
    assert mixture_grid(load_entries(runs[::2])).columns == ("source", "all runs")


def test_a_run_without_results_has_no_row(write_run):
    assert mixture_grid(load_entries([write_run(killed=True)])).rows == []
