"""Ranks that start again go on from local copies, newer than any checkpoint, bit for bit."""

from pathlib import Path

import pytest
import torch

from components.checkpoint.local_copies import LocalCopies
from tests.life.conftest import TINY, act, entries
from tests.life.test_restarts import events, weights

STEPS = 8
OWN = {
    "budget.total_tokens": STEPS * 512,
    "checkpoint.every_tokens": 4 * 512,
    "evaluation.every_tokens": STEPS * 512,
    "evaluation.max_windows_per_source": 4,
    "parallelism.microbatch_sequences": 2,
    "cluster.ranks": 2,
    "watchdog.restarts": 2,
    "watchdog.every_steps": 2,
}


def train(home: Path, name: str, *words: str, status: int = 0) -> Path:
    kept = [word for word in TINY if word.partition("=")[0] not in OWN]
    named = {word.partition("=")[0] for word in words}
    own = [f"{key}={value}" for key, value in OWN.items() if key not in named]
    assert act(home, *kept, *own, *words, f"run={name}") == status
    return home / name


def local(folder: Path) -> str:
    return f"checkpoint.local={{folder: {folder}, every_steps: 1}}"


def losses(run: Path) -> dict[int, float]:
    return {one["step"]: one["loss"] for one in entries(run, "step")}


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    return train(home, "undisturbed")


def assert_equal(run: Path, other: Path) -> None:
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert losses(run) == losses(other)


@pytest.mark.long
def test_a_killed_rank_costs_the_steps_after_the_last_local_copies(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    kill = "guard.inject=[{fault: kill, rank: 1, step: 4}, {fault: kill, rank: 0, step: 8}]"
    run = train(home, "struck", kill, local(tmp_path))
    resumes = events(run, "resume")
    assert [one["evidence"]["source"] for one in resumes] == ["local"] * 2
    assert all(one["evidence"]["load_seconds"] > 0 for one in resumes)
    # The kill comes before a step, while the copies of the step before may not be whole yet.
    assert resumes[0]["step"] in {2, 3}
    assert resumes[1]["step"] in {6, 7}
    assert_equal(run, undisturbed)
    (job,) = tmp_path.iterdir()
    assert [path for path in job.rglob("*") if path.is_file()] == []


@pytest.mark.long
def test_a_run_that_goes_back_forgets_the_copies_of_what_is_undone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, forget = [], LocalCopies.remove_own_files

    def look(copies: LocalCopies) -> None:
        before = list(tmp_path.rglob("rank-*"))
        forget(copies)
        counted.append((len(before), len(list(tmp_path.rglob("rank-*")))))

    monkeypatch.setattr(LocalCopies, "remove_own_files", look)
    nan = "guard.inject=[{fault: nan, rank: 0, step: 7}]"
    words = (nan, "guard.non_finite.action=roll_back", "cluster.ranks=1", "watchdog.restarts=0")
    run = train(home, "back", *words, local(tmp_path))
    assert [one["step"] for one in events(run, "roll_back")] == [4]
    assert counted == [(1, 0)] * 2  # where it goes back, and at the end


@pytest.mark.long
def test_a_rewound_run_goes_on_from_where_the_user_put_it(
    home: Path, undisturbed: Path, tmp_path: Path
) -> None:
    kill = "guard.inject=[{fault: kill, rank: 1, step: 7}]"
    words = (kill, local(tmp_path), "watchdog.restarts=0")
    run = train(home, "rewound", *words, status=1)
    assert act(home, "resume=rewound", "at_tokens=2048") == 0
    (resume,) = events(run, "resume")
    assert (resume["step"], resume["evidence"]["source"]) == (4, "checkpoints")
    assert_equal(run, undisturbed)


@pytest.mark.long
def test_deepspeeds_state_is_kept_too(home: Path, tmp_path: Path) -> None:
    deepspeed = ("parallelism.engine=deepspeed", "parallelism.zero=2")
    whole = train(home, "deepspeed", *deepspeed)
    kill = "guard.inject=[{fault: kill, rank: 1, step: 7}]"
    run = train(home, "deepspeed-struck", *deepspeed, kill, local(tmp_path))
    (resume,) = events(run, "resume")
    assert (resume["evidence"]["source"], resume["step"] in {5, 6}) == ("local", True)
    assert_equal(run, whole)
