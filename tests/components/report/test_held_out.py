"""Held-out losses in words: which mean, of which step, and none where there is none."""

from typing import Any

import pytest

from components.report.held_out import ending_lines, held_out_card, held_out_grid
from components.report.outcome import load_entries
from components.run.records import HeldOutRecord
from tests.components.report import conftest as runs

PLACE = "after step 60 (491,520 tokens)"
ABSENT = dict.fromkeys(("step", "tokens", "final", "final_unweighted", "rising"))
STOPPED: dict[str, object] = {**ABSENT, "by_source": {}}


def results_with(**changed: object) -> dict[str, Any]:
    tree = runs.results_tree(60)
    return tree | {"held_out": tree["held_out"] | changed}


def test_the_end_of_a_run_names_both_means_and_their_step() -> None:
    assert ending_lines(HeldOutRecord.model_validate(runs.results_tree(60)["held_out"])) == [
        f"held-out loss 2.535, weighted as the mixture, {PLACE}; "
        "not rising over the last quarter; a smoothed unigram model: 6.543",
        "held-out loss 2.715, plain mean over 5 sources; a smoothed unigram model: 6.600",
    ]


@pytest.mark.parametrize(
    ("changed", "begins", "trend"),
    [
        ({"rising": None}, "held-out loss 2.535, ", ""),
        ({"rising": True}, "held-out loss 2.535, ", "; rising over the last quarter"),
        ({"by_source": {"en": 2.5}, "final": 2.5}, f"held-out loss 2.500, {PLACE}; ", "not"),
        ({"final": None}, "held-out loss not finite, ", "not"),
        (STOPPED, "held-out loss: no evaluation since step 0", ""),
    ],
    ids=["no trend", "rising", "one source has one mean", "not finite", "stopped before one"],
)
def test_the_end_of_a_run_has_only_known_values(changed, begins: str, trend: str) -> None:
    lines = ending_lines(HeldOutRecord.model_validate(results_with(**changed)["held_out"]))
    assert lines[0].startswith(begins)
    assert trend in lines[0] if trend else "last quarter" not in lines[0]
    assert len(lines) == (1 if "by_source" in changed else 2)


def test_the_card_warns_of_a_rising_loss(write_run) -> None:
    (entry,) = load_entries([write_run(results=results_with(rising=True))])
    card = held_out_card(entry.outcome)
    assert (card.value, card.warning) == ("2.535", "rising over the last quarter")
    assert card.notes == (
        "weighted as the mixture", PLACE, "smoothed unigram 6.543", "before training 8.720",
        "plain mean over 5 sources 2.715",
    )  # fmt: skip


def test_a_run_of_an_earlier_version_has_a_plain_mean_on_its_card(write_run) -> None:
    (entry,) = load_entries([write_run(results=runs.earlier_results_tree(60))])
    card = held_out_card(entry.outcome)
    assert (card.value, card.notes[0]) == ("2.715", "plain mean over 5 sources")
    assert "smoothed unigram 6.600" in card.notes


@pytest.mark.parametrize("killed", [True, False])
def test_a_card_without_an_evaluation_has_the_untrained_loss(write_run, killed: bool) -> None:
    lines, stopped = [runs.held_out_line(0), runs.step_line(1)], results_with(**STOPPED)
    (entry,) = load_entries([write_run(killed=killed, lines=lines, results=stopped)])
    card = held_out_card(entry.outcome)
    assert (card.value, card.warning) == ("—", "")
    assert card.notes[0] == "no evaluation since step 0"
    assert "before training 8.720" in card.notes


def test_the_table_has_both_means_and_is_sorted_by_share(write_run) -> None:
    grid = held_out_grid(load_entries([write_run("a")]))
    assert grid.rows[:3] == [
        ("weighted as the mixture", "—", "8.720", "2.535", "6.543"),
        ("plain mean over sources", "—", "8.900", "2.715", "6.600"),
        ("de", "30.00%", "8.300", "2.115", "6.200"),
    ]
    assert [row[0] for row in grid.rows[2:]] == ["de", "en", "fi", "mt", "python"]
    both = held_out_grid(load_entries([write_run("b"), write_run("c")]))
    assert both.columns[0] == "run"
    assert sorted(row[0] for row in both.rows) == ["b"] * 7 + ["c"] * 7
