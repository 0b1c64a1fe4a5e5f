"""A study's objective is the loss of a trained model, or there is none and the reason is said."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from command.study.request import StudyRequest
from command.study.runs import PointEnding, result_in
from components.errors import RecipeError
from tests.components.report.conftest import earlier_results_tree, results_tree


def ending(folder: Path, results: dict[str, Any], key: str) -> PointEnding | None:
    (folder / "results.json").write_text(json.dumps(results))
    study = SimpleNamespace(objective=SimpleNamespace(measured=key))
    asked = SimpleNamespace(study=study, folder_of=lambda point: folder)
    return result_in(cast("StudyRequest", asked), {})


def test_the_objective_is_the_loss_weighted_as_the_mixture_or_the_plain_mean(
    tmp_path: Path,
) -> None:
    found = results_tree(60)
    for key in ("final", "final_unweighted"):
        given = ending(tmp_path, found, f"held_out.{key}")
        assert given == PointEnding(found["held_out"][key], "")


@pytest.mark.parametrize("key", ["held_out.final", "held_out.final_unweighted"])
def test_a_point_without_an_evaluation_after_its_first_step_has_no_figure(
    tmp_path: Path, key: str
) -> None:
    found = results_tree(2)
    found["held_out"] |= {"final": None, "final_unweighted": None, "by_source": {}}
    assert ending(tmp_path, found, key) == PointEnding(
        None, f"{key}: no evaluation since step 0"
    )
    earlier = earlier_results_tree(2, first=7.648, final=7.648)
    given = ending(tmp_path, earlier, key)
    assert given == PointEnding(None, f"{key}: no evaluation since step 0")


def test_a_point_of_an_earlier_version_is_not_compared_by_another_mean(tmp_path: Path) -> None:
    found = earlier_results_tree(60)
    given = ending(tmp_path, found, "held_out.final_unweighted")
    assert given == PointEnding(found["held_out"]["final"], "")
    given = ending(tmp_path, found, "held_out.final")
    assert given is not None
    assert given.figure is None
    assert given.why == "held_out.final was not measured; held_out.final_unweighted was"


def test_a_stopped_point_has_not_ended(tmp_path: Path) -> None:
    assert ending(tmp_path, results_tree(2) | {"status": "stopped"}, "held_out.final") is None


def test_a_key_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"held_out\.finale is no number there"):
        ending(tmp_path, results_tree(60), "held_out.finale")
