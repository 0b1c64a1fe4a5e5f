"""The journal of a search: what a kill leaves of it, and what somebody else wrote into it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from command.study.journal import StudyJournal
from command.study.outcomes import PointOutcome
from command.study.schema import SearchStudy
from command.study.search import _close, _draw, _open_trials, _tried
from command.study.study_file import check_study
from components.errors import RecipeError
from tests.command.study.test_search import RATES

SPACE = {"optimizer.lr": {"low": 1e-5, "high": 1e-2, "log": True}, "model.dim": [32, 64, 96]}
TRIALS = 4
SEARCH: dict[str, Any] = RATES["search"]


def study_of(**changes: Any) -> SearchStudy:
    few = SEARCH | {"trials": TRIALS}
    tree = json.loads(json.dumps({**RATES, "space": SPACE, "search": few, **changes}))
    found = check_study(tree, "rates.yaml")
    assert isinstance(found, SearchStudy)
    return found


def search(study: SearchStudy, file: Path) -> Any:
    """Go on with a search: a point of the smallest model has no figure."""
    trials = _open_trials(study, file)
    for number, point in _draw(study, trials):
        assert 1e-5 <= float(point["optimizer.lr"]) <= 1e-2
        small = point["model.dim"] == 32
        _close(trials, number, PointOutcome(None if small else 1.0 + number, "too small"))
    return trials


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of trials that have ended."""
    file = tmp_path_factory.mktemp("journal") / "study.journal"
    search(study_of(), file)
    return file


@pytest.fixture
def file(whole: Path, tmp_path: Path) -> Path:
    shutil.copy(whole, tmp_path)
    return tmp_path / whole.name


@pytest.mark.parametrize("cut", [0, 40, -1])
def test_a_journal_that_a_kill_cut_anywhere_is_gone_on_with(cut: int, whole: Path) -> None:
    """At every line: whole, without its end, and after some bytes."""
    study, lines = study_of(), whole.read_bytes().splitlines(keepends=True)
    for place, line in enumerate(lines):
        file = whole.with_name(f"cut-{cut}-{place}")
        file.write_bytes(b"".join(lines[:place]) + line[:cut])
        ended = [json.loads(one) for one in lines[:place] if b'"op_code":6' in one]
        trials = search(study, file)
        assert len(_tried(trials)) == TRIALS
        kept = [one.values for one in trials.trials[: len(ended)]]
        assert kept == [one["values"] for one in ended]
        assert all(one.params.keys() == SPACE.keys() for one in _tried(trials))
        StudyJournal(file, study).read_logs(0)  # and again


def forge(file: Path, record: dict[str, Any]) -> None:
    """Put a record behind the last line; what it does not say is as in a line of its kind."""
    kinds = {one["op_code"]: one for one in map(json.loads, file.read_text().splitlines())}
    with file.open("a") as stream:
        stream.write(json.dumps(kinds.get(record["op_code"], {}) | record) + "\n")


SETUP = json.dumps([{"run": "touch x"}])
CHOICES = '{"name": "CategoricalDistribution", "attributes": {"choices": [%s]}}'


@pytest.mark.parametrize(
    "record",
    [
        {"op_code": 5, "param_name": "cluster.site.setup", "distribution": CHOICES % SETUP},
        {"op_code": 5, "param_name": "model.dim", "distribution": CHOICES % "1, 2, 3"},
        {"op_code": 5, "param_name": "optimizer.lr", "param_value_internal": 1.0},
        {"op_code": 5, "param_value_internal": 7.0},
        {"op_code": 5, "param_value_internal": float("nan")},
        {"op_code": 5, "param_value_internal": True},
        {"op_code": 5, "trial_id": TRIALS},
        {"op_code": 5, "distribution": "[" * 5000},
        {"op_code": 5, "distribution": '{"name": "os.system", "attributes": {}}'},
        {"op_code": 6, "values": [float("inf")]},
        {"op_code": 6, "state": 1, "values": ["3"]},
        {"op_code": 6, "state": 0},
        {"op_code": 6, "datetime_complete": "yesterday"},
        {"op_code": 4, "params": {"model.dim": 0}, "distributions": {"model.dim": CHOICES}},
        {"op_code": 4, "state": 0},
        {"op_code": 4, "system_attrs": {"fixed_params": {"cluster.site.setup": "x"}}},
        {"op_code": 0, "study_name": "other"},
        {"op_code": 1, "study_id": 0},
        {"op_code": 2, "user_attr": {"0": {"a": 1}}},
        {"op_code": 3, "study_id": 0, "system_attr": {"a": 1}},
        {"op_code": "5"},
    ],
)
def test_forged_record_is_refused_by_line(record: dict[str, Any], file: Path) -> None:
    lines = len(file.read_bytes().splitlines())
    forge(file, record)
    with pytest.raises(RecipeError) as refused:
        _open_trials(study_of(), file)
    assert refused.value.path == f"{file}:{lines + 1}"


@pytest.mark.parametrize("line", ["[]", "7", "{}", "[" * 100_000, "\x00", '{"op_code": 5'])
def test_a_line_that_is_no_record_is_refused(line: str, file: Path) -> None:
    file.write_text(line + "\n" + file.read_text())
    with pytest.raises(RecipeError, match=r"study\.journal:1"):
        _open_trials(study_of(), file)


def test_a_journal_of_another_search_space_is_refused(file: Path) -> None:
    wider = {**SPACE, "model.dim": [32, 64, 96, 128]}
    with pytest.raises(RecipeError, match="search space"):
        _open_trials(study_of(space=wider), file)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder", "device", "large"])
def test_what_is_no_file_of_the_study_s_own_is_not_opened(kind: str, tmp_path: Path) -> None:
    outside, file = tmp_path / "outside", tmp_path / "study.journal"
    outside.write_text("")
    make = {
        "link": lambda: file.symlink_to(outside),
        "hard link": lambda: file.hardlink_to(outside),
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "device": lambda: file.symlink_to("/dev/zero"),
        "large": lambda: os.truncate(os.open(file, os.O_CREAT | os.O_RDWR), 1 << 40),
    }
    make[kind]()
    with pytest.raises(RecipeError, match=r"study\.journal"):
        _open_trials(study_of(), file)
    assert outside.read_text() == ""


def test_a_lock_that_a_kill_left_of_an_earlier_version_holds_nobody_up(file: Path) -> None:
    file.with_name("study.journal.lock").symlink_to("study.journal-gone")
    assert len(_tried(search(study_of(), file))) == TRIALS


def test_no_more_trials_are_begun_than_the_study_has(tmp_path: Path) -> None:
    file, more = tmp_path / "study.journal", study_of(search=SEARCH | {"trials": 40})
    assert len(list(_draw(more, _open_trials(more, file)))) == 40
    assert len(list(_draw(study_of(), _open_trials(study_of(), file)))) == TRIALS
