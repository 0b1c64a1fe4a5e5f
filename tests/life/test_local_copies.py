"""Ranks that start again go on from local copies, newer than any checkpoint, bit for bit."""

from pathlib import Path

import pytest

from components.checkpoint.local_copies import LocalCopies
from tests.life.conftest import act, check_same_bits, column, entries, tiny
from tests.life.together import begin, train_together

pytestmark = pytest.mark.long

STEPS = 8
WORDS = tiny(
    f"budget.total_tokens={STEPS * 512}",
    f"checkpoint.every_tokens={4 * 512}",
    f"evaluation.every_tokens={STEPS * 512}",
    "evaluation.max_windows_per_source=4",
    "parallelism.microbatch_sequences=2",
)
TWO = (*WORDS, "cluster.ranks=2", "watchdog.restarts=2", "watchdog.every_steps=2")
DEEPSPEED = (*TWO, "parallelism.engine=deepspeed", "parallelism.zero=2")


def train(home: Path, name: str, *words: str, status: int = 0) -> Path:
    assert act(home, *words, f"run={name}") == status
    return home / name


def local(folder: Path) -> str:
    return f"checkpoint.local={{folder: {folder}, every_steps: 1}}"


def losses(run: Path) -> dict[int, float]:
    return dict(zip(column(run, "step"), column(run, "loss"), strict=True))


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> dict[str, Path]:
    """A run of each engine that nothing befalls."""
    runs = {
        "mesh": begin(home, "mesh", *TWO),
        "deepspeed": begin(home, "deepspeed", *DEEPSPEED),
    }
    train_together([*runs.values()], 2)
    return runs


def test_a_killed_rank_resumes_from_local_copies(home, undisturbed, tmp_path):
    kill = "guard.inject=[{fault: kill, rank: 1, step: 4}, {fault: kill, rank: 0, step: 8}]"
    run = train(home, "struck", *TWO, kill, local(tmp_path))
    resumes = entries(run, "resume")
    assert [one["evidence"]["source"] for one in resumes] == ["local"] * 2
    assert all(one["evidence"]["load_seconds"] > 0 for one in resumes)
    # The kill comes before a step, while the copies of the step before may not be whole yet.
    assert resumes[0]["step"] in {2, 3}
    assert resumes[1]["step"] in {6, 7}
    check_same_bits(run, undisturbed["mesh"])
    assert losses(run) == losses(undisturbed["mesh"])
    (job,) = tmp_path.iterdir()
    assert [path for path in job.rglob("*") if path.is_file()] == []


def test_a_rollback_removes_later_local_copies(home, tmp_path, monkeypatch):
    counted, forget = [], LocalCopies.remove_own_files

    def look(copies: LocalCopies) -> None:
        before = list(tmp_path.rglob("rank-*"))
        forget(copies)
        counted.append((len(before), len(list(tmp_path.rglob("rank-*")))))

    monkeypatch.setattr(LocalCopies, "remove_own_files", look)
    nan = "guard.inject=[{fault: nan, rank: 0, step: 7}]"
    roll_back = "guard.non_finite.action=roll_back"
    run = train(home, "back", *WORDS, nan, roll_back, local(tmp_path))
    assert column(run, "step", "roll_back") == [4]
    assert counted == [(1, 0)] * 2  # where it goes back, and at the end


@pytest.fixture(scope="module")
def alone(home: Path) -> Path:
    return train(home, "alone", *WORDS)


@pytest.mark.parametrize(
    ("words", "source", "step"),
    [((), "local", 6), (("at_tokens=2048",), "checkpoints", 4)],
    ids=["resumed", "rewound"],
)
def test_a_user_can_resume_from_copies_or_an_earlier_checkpoint(
    words: tuple[str, ...], source: str, step: int, alone: Path, home: Path, tmp_path: Path
) -> None:
    nan = "guard.inject=[{fault: nan, rank: 0, step: 7}]"
    told = ("guard.non_finite.action=relaunch", local(tmp_path))
    run = train(home, f"rewound-{source}", *WORDS, nan, *told, status=1)
    assert act(home, f"resume={run.name}", *words) == 0
    (resume,) = entries(run, "resume")
    assert (resume["step"], resume["evidence"]["source"]) == (step, source)
    check_same_bits(run, alone)
    assert losses(run) == losses(alone)


def test_local_copies_include_deepspeed_state(home, undisturbed, tmp_path):
    kill = "guard.inject=[{fault: kill, rank: 1, step: 7}]"
    run = train(home, "deepspeed-struck", *DEEPSPEED, kill, local(tmp_path))
    (resume,) = entries(run, "resume")
    assert (resume["evidence"]["source"], resume["step"] in {5, 6}) == ("local", True)
    check_same_bits(run, undisturbed["deepspeed"])
    assert losses(run) == losses(undisturbed["deepspeed"])
