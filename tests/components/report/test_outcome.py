"""Run folders, whole and broken, and what came out of the runs."""

import math
from pathlib import Path
from statistics import median

import pytest

from components.errors import RecipeError
from components.report import outcome
from components.report.tables import count_incidents
from tests.components.report import conftest as runs


def outcome_in(folder: Path) -> outcome.RunOutcome:
    return outcome.outcome_of(outcome.load_run(folder))


def test_a_finished_run_is_read_from_its_results(write_run):
    run = outcome.load_run(write_run())
    out = outcome.outcome_of(run)
    assert run.recipe["name"] == "walnut7b"
    assert (out.status, out.steps, out.held_out.rising) == ("finished", 60, False)
    assert (out.held_out.step, out.held_out.unigram) == (60, 6.543)
    assert out.training_loss == run.history.steps[-1].loss
    sources = (out.first_by_source, out.held_out.by_source, out.held_out.unigram_by_source)
    assert {frozenset(one) for one in sources} == {frozenset(runs.SOURCES)}


def test_a_killed_run_is_read_from_its_event_log(write_run):
    run = outcome.load_run(write_run(killed=True))
    out = outcome.outcome_of(run)
    rate = median(step.tokens_per_second for step in run.history.steps)
    assert (out.status, out.steps, out.tokens) == ("unfinished", 60, 60 * 8192)
    last = run.history.held_out[-1]
    assert (out.held_out.step, out.held_out.tokens) == (60, 60 * 8192)
    final = (out.held_out.final, out.held_out.final_unweighted)
    assert final == (last.weighted_loss, last.loss)
    assert out.tokens_per_second_per_device == rate / 4
    assert out.flops_per_second == {"full": 8_000_000 * rate, "causal": 7_600_000 * rate}
    assert (out.held_out.unigram, out.held_out.rising) == (None, None)
    assert out.seconds == run.history.goodput.wall_seconds


def test_a_run_killed_early_has_only_the_untrained_loss(write_run):
    lines = [runs.held_out_line(0), runs.step_line(1)]
    out = outcome_in(write_run(killed=True, lines=lines))
    assert (out.held_out.final, out.held_out.final_unweighted) == (None, None)
    assert out.held_out.first == runs.held_out_line(0)["weighted_loss"]
    assert not out.held_out.by_source


def test_plain_means_of_earlier_versions_have_a_step(write_run):
    lines = [*map(runs.of_an_earlier_version, runs.history_lines(60))]
    out = outcome_in(write_run(lines=lines, results=runs.earlier_results_tree(60)))
    plain = runs.held_out_line(60)["loss"]
    assert (out.held_out.final, out.held_out.final_unweighted) == (None, plain)
    assert (out.held_out.unigram, out.held_out.unigram_unweighted) == (None, 6.6)
    assert (out.held_out.step, out.held_out.rising) == (60, False)


def test_the_untrained_loss_of_earlier_versions_is_not_final(write_run):
    lines = [runs.of_an_earlier_version(runs.held_out_line(0)), runs.step_line(1)]
    untrained = runs.held_out_line(0)["loss"]
    results = runs.earlier_results_tree(
        1, first=untrained, final=untrained, slope_last_quarter=0.0
    )
    out = outcome_in(write_run(lines=lines, results=results))
    assert (out.held_out.first_unweighted, out.held_out.final_unweighted) == (untrained, None)
    assert (out.held_out.step, out.held_out.rising) == (None, None)
    assert not out.held_out.by_source


def test_a_run_killed_before_its_first_step_has_no_figures(write_run):
    out = outcome_in(write_run(killed=True, lines=[]))
    assert (out.steps, out.tokens, out.flops_per_second) == (0, 0, {})
    figures = (out.training_loss, out.tokens_per_second, out.seconds, out.device_hours)
    assert figures == (None, None, None, None)


def test_non_finite_losses_are_counted(write_run):
    (entry,) = outcome.load_entries([write_run(lines=[runs.step_line(1, loss=math.nan)])])
    assert count_incidents(entry)["steps with a non-finite loss"] == "1"


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"not a run folder: recipe\.json is missing"):
        outcome.load_run(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("derived.json", None, r"derived\.json: is missing"),
        ("environment.json", None, r"environment\.json: is missing"),
        ("results.json", "{", "is not JSON: Expecting property name"),
        ("results.json", "[1]", "is a list, not a mapping"),
        (
            "recipe.json",
            '{"name": "x", "description": "y", "scale": {}, "cluster": {}}',
            r"recipe\.json: model is missing; parallelism is missing; budget is missing; "
            "scale.name is missing",
        ),
    ],
)
def test_refuses_files_that_are_missing_or_damaged(write_run, file, text, problem):
    folder = write_run()
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(RecipeError, match=problem):
        outcome.load_run(folder)


def test_empty_and_repeated_runs_are_refused(write_run):
    with pytest.raises(RecipeError, match="runs: the list is empty"):
        outcome.load_entries([])
    folder = write_run()
    with pytest.raises(RecipeError, match=r"lists .* twice"):
        outcome.load_entries([folder, folder / ".." / folder.name])


def test_labels_are_the_shortest_that_differ():
    assert outcome.short_labels([Path("/home/ada/a"), Path("/home/ada/b")]) == ("a", "b")
    assert outcome.short_labels([Path("/x/one/a"), Path("/x/two/a")]) == ("one/a", "two/a")
    assert outcome.short_labels([Path("/home/ada/runs/a")]) == ("a",)


def test_flat_keeps_empty_mappings_as_values():
    flat = outcome.flatten_tree({"a": {"b": 1, "c": {}}, "d": [1]})
    assert flat == {"a.b": 1, "a.c": {}, "d": [1]}
