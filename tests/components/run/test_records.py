"""Files of a run folder: what is missing or of another type is named, what is newer is left."""

import json
import math
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.json_file import replace_nonfinite
from components.run.records import (
    DataRecord,
    DerivedRecord,
    Ending,
    EnvironmentRecord,
    Results,
    read_checked,
    read_record,
)
from components.run.reported import RecipeRecord


def write(folder: Path, tree: object) -> Path:
    (folder / "a.json").write_text(json.dumps(tree))
    return folder / "a.json"


@pytest.mark.parametrize(
    ("kind", "tree", "problem"),
    [
        (Ending, {}, "status is missing"),
        (Ending, {"status": "fine"}, "status: input should be 'finished' or 'stopped', got 'f"),
        (Results, {"status": "finished", "tokens": "many"}, "steps is missing; tokens: in"),
        (DataRecord, {"folder": 3, "key": "k"}, "folder: input should be a valid str"),
        (DataRecord, {"folder": "a\0b", "key": "k"}, "folder: string should match pattern"),
        (EnvironmentRecord, {"command": ["x", 3]}, "command.1: input should be a"),
        (EnvironmentRecord, {"command": "run.py"}, "command: input should be a valid tuple"),
        (DerivedRecord, {"parameters": {"total": 0}}, "parameters.total: input should be"),
        (RecipeRecord, {"published": {"a": 3}}, "name is missing; description is missing"),
        (
            RecipeRecord,
            {
                **{key: {} for key in ("model", "parallelism", "published", "assumed")},
                "name": "x",
                "description": "x",
                "budget": {"total_tokens": 1},
                "scale": {"name": "mini"},
                "cluster": {"name": "x", "electricity": {"power_usage_effectiveness": "y"}},
            },
            "cluster.electricity.power_usage_effectiveness: input should be a valid number",
        ),
    ],
)
def test_missing_and_invalid_values_are_named(tmp_path, kind, tree, problem):
    file = write(tmp_path, tree)
    with pytest.raises(RecipeError) as caught:
        read_record(file, kind, remedy="copy it again")
    assert (caught.value.path, caught.value.remedy) == (str(file), "copy it again")
    assert caught.value.problem.startswith(problem)


def test_long_values_and_long_lists_of_errors_are_shortened(tmp_path: Path) -> None:
    file = write(tmp_path, {"command": list(range(20)), "commit": "x"})
    with pytest.raises(RecipeError, match=r"command\.7: .*, got 7; and 12 more"):
        read_record(file, EnvironmentRecord)
    with pytest.raises(RecipeError) as caught:
        read_record(write(tmp_path, {"status": "y" * 10_000}), Ending)
    assert len(caught.value.problem) < 200
    file = write(tmp_path, {"status": "stopped", "colour": "blue"})
    assert read_record(file, Ending) == Ending(status="stopped")
    assert read_checked(file, Ending)["colour"] == "blue"


def test_numbers_that_are_not_finite_are_null_and_their_keys_are_listed() -> None:
    held_out = {"final": math.nan, "first": 1.5}
    tree = {"loss": math.inf, "steps": 3, "held_out": held_out, "rates": [1.0, -math.inf]}
    found = json.loads(json.dumps(replace_nonfinite(tree), allow_nan=False))
    assert found.pop("not_finite") == ["loss", "held_out.final", "rates.1"]
    whole = {"loss": None, "steps": 3, "held_out": held_out | {"final": None}}
    assert found == whole | {"rates": [1.0, None]}
