"""Held-out losses in words: which mean, of which step, and none where there is none."""

from components.report.held_out import ending_lines, held_out_card, held_out_grid
from components.report.outcome import load_entries
from components.run.records import HeldOutRecord
from tests.components.report.conftest import (
    earlier_results_tree,
    held_out_line,
    results_tree,
    step_line,
)


def record(**changed: object) -> HeldOutRecord:
    return HeldOutRecord.model_validate(results_tree(60)["held_out"] | changed)


def test_the_end_of_a_run_names_both_means_their_step_and_what_they_compare_with() -> None:
    assert ending_lines(record()) == [
        "held-out loss 2.535, weighted as the mixture, after step 60 (491,520 tokens); "
        "not rising over the last quarter; a smoothed unigram model: 6.543",
        "held-out loss 2.715, plain mean over 5 sources; a smoothed unigram model: 6.600",
    ]


def test_a_trend_is_said_only_where_there_is_one_to_tell() -> None:
    assert "last quarter" not in ending_lines(record(rising=None))[0]
    assert "; rising over the last quarter" in ending_lines(record(rising=True))[0]


def test_of_one_source_there_is_one_mean() -> None:
    (line,) = ending_lines(record(by_source={"en": 2.5}, final=2.5))
    assert line.startswith("held-out loss 2.500, after step 60 (491,520 tokens); ")


def test_after_a_stop_before_the_first_evaluation_no_loss_is_claimed() -> None:
    stopped = HeldOutRecord(first=7.648, first_unweighted=7.648, shares={"en": 1.0})
    assert ending_lines(stopped) == ["held-out loss: no evaluation since step 0"]


def test_a_loss_that_is_no_number_is_called_so() -> None:
    assert ending_lines(record(final=None))[0].startswith("held-out loss not finite, ")


def test_the_card_warns_of_a_rising_loss(write_run) -> None:
    results = results_tree(60)
    results["held_out"]["rising"] = True
    (entry,) = load_entries([write_run(results=results)])
    card = held_out_card(entry.outcome)
    assert (card.value, card.warning) == ("2.535", "rising over the last quarter")
    assert card.notes == (
        "weighted as the mixture", "after step 60 (491,520 tokens)",
        "smoothed unigram 6.543", "before training 8.720", "plain mean over 5 sources 2.715",
    )  # fmt: skip


def test_the_card_of_an_earlier_versions_run_calls_its_loss_a_plain_mean(write_run) -> None:
    (entry,) = load_entries([write_run(results=earlier_results_tree(60))])
    card = held_out_card(entry.outcome)
    assert (card.value, card.notes[0]) == ("2.715", "plain mean over 5 sources")
    assert "smoothed unigram 6.600" in card.notes


def test_the_card_of_a_run_without_an_evaluation_has_the_untrained_loss_as_such(
    write_run,
) -> None:
    lines = [held_out_line(0), step_line(1)]
    (entry,) = load_entries([write_run(killed=True, lines=lines)])
    card = held_out_card(entry.outcome)
    assert (card.value, card.warning) == ("—", "")
    assert card.notes == ("no evaluation since step 0", "before training 8.720")


def test_the_table_has_both_means_and_the_most_drawn_source_first(write_run) -> None:
    grid = held_out_grid(load_entries([write_run()]))
    assert grid.rows[:3] == [
        ("weighted as the mixture", "—", "8.720", "2.535", "6.543"),
        ("plain mean over sources", "—", "8.900", "2.715", "6.600"),
        ("de", "30.00%", "8.300", "2.115", "6.200"),
    ]
    assert [row[0] for row in grid.rows[2:]] == ["de", "en", "fi", "mt", "python"]


def test_the_table_of_several_runs_says_whose_a_row_is(write_run) -> None:
    grid = held_out_grid(load_entries([write_run("a"), write_run("b")]))
    assert grid.columns[0] == "run"
    assert {row[0] for row in grid.rows} == {"a", "b"}
    assert len(grid.rows) == 14
