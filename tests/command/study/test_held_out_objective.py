"""A study's objective is the loss of a trained model; where there is none, it says why."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.outcome import Status
from command.study.outcomes import PointOutcome, result_in
from command.study.request import read_study_request
from components.errors import RecipeError
from tests.command.study.test_search import RATES
from tests.components.report.conftest import earlier_results_tree, results_tree

POINT = {"optimizer.lr": 1.0e-5, "budget.global_batch_tokens": 256}


def ending(folder: Path, results: dict[str, Any], key: str) -> PointOutcome | None:
    """Ask what became of a point whose run ended with these results."""
    objective = {"measured": key, "planned": None, "direction": "minimize"}
    (folder / "rates.yaml").write_text(yaml.safe_dump({**RATES, "objective": objective}))
    request = read_study_request([f"study={folder / 'rates.yaml'}", f"run={folder / 'runs'}"])
    run = request.folder_of(POINT)
    run.mkdir(parents=True, exist_ok=True)
    (run / "results.json").write_text(json.dumps(results))
    return result_in(request, POINT)


def test_objective_is_weighted_or_plain_mean(tmp_path: Path) -> None:
    found = results_tree(60)
    for key in ("final", "final_unweighted"):
        given = ending(tmp_path, found, f"held_out.{key}")
        assert given == PointOutcome(found["held_out"][key], "")
    assert ending(tmp_path, results_tree(2) | {"status": "stopped"}, "held_out.final") is None
    with pytest.raises(RecipeError, match=r"held_out\.finale is not a number there"):
        ending(tmp_path, results_tree(60), "held_out.finale")


@pytest.mark.parametrize("key", ["held_out.final", "held_out.final_unweighted"])
def test_point_without_evaluation_has_no_figure(tmp_path: Path, key: str) -> None:
    found = results_tree(2)
    found["held_out"] |= {"final": None, "final_unweighted": None, "by_source": {}}
    assert ending(tmp_path, found, key) == PointOutcome(
        None, f"{key}: no evaluation since step 0"
    )
    earlier = earlier_results_tree(2, first=7.648, final=7.648)
    given = ending(tmp_path, earlier, key)
    assert given == PointOutcome(None, f"{key}: no evaluation since step 0")


def test_points_of_earlier_versions_keep_their_mean(tmp_path: Path) -> None:
    found = earlier_results_tree(60)
    given = ending(tmp_path, found, "held_out.final_unweighted")
    assert given == PointOutcome(found["held_out"]["final"], "")
    given = ending(tmp_path, found, "held_out.final")
    assert given is not None
    assert given.figure is None
    assert given.why == "held_out.final was not measured; held_out.final_unweighted was"


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("key", ["held_out.final", "held_out.final_unweighted", "loss"])
def test_a_diverged_point_has_no_figure(tmp_path: Path, key: str, value: float) -> None:
    """Results of earlier versions say NaN; later ones have null and list the key."""
    found, why = results_tree(60), f"{key} is not a finite number: the run diverged"
    diverged = PointOutcome(None, why, status=Status.DOES_NOT_HOLD)
    section, _, name = key.rpartition(".")
    (found[section] if section else found)[name] = value
    assert ending(tmp_path, found, key) == diverged
    (found[section] if section else found)[name] = None
    assert ending(tmp_path, found | {"not_finite": [key]}, key) == diverged
