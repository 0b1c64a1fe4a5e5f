"""A finished run goes back to an earlier checkpoint and on again, as a user asks for it."""

import shutil
from pathlib import Path

import pytest

from tests.life.conftest import Program, act, check_same_bits, column, saved, tiny

WORDS = tiny(
    *("budget.total_tokens=6_144", "checkpoint.every_tokens=3_072", "checkpoint.keep=9"),
    "checkpoint.weights_every_tokens=1_536",
)


def said_by(program: Program, *words: str, status: int = 0) -> str:
    done = program(*words, status=status)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    assert act(home, *WORDS, f"run={home / 'whole'}") == 0
    return home / "whole"


@pytest.mark.long
def test_a_rewound_run_has_the_same_bits_unless_its_optimizer_is_fresh(whole, home, program):
    run = Path(shutil.copytree(whole, home / "rewound"))
    said = said_by(program, f"resume={run}", "at_tokens=3_072")
    assert f"moved to {run}/checkpoints/left: tokens-{6_144:015d}" in said
    check_same_bits(run, whole)
    said_by(program, f"resume={run}", "at_tokens=4_608", "fresh_optimizer=true")
    fresh, weight = saved(run), "model.embedding.weight"
    assert not fresh[weight].equal(saved(whole)[weight])
    assert {int(x) for name, x in fresh.items() if name.endswith(".step")} == {3}  # 9 to 12
    assert column(run, "step", "rewind") == column(run, "step", "resume") == [6, 9]
    assert len(column(run, "loss")) == 12 + 6 + 3


@pytest.mark.long
def test_an_invalid_rewind_is_refused_and_changes_nothing(whole, program):
    before = sorted(one.name for one in (whole / "checkpoints").iterdir())
    for words, message in (
        ((), "has finished"),
        (("fresh_optimizer=true",), "at_tokens: fresh_optimizer requires a checkpoint"),
        (("at_tokens=4_608",), "at_tokens: no checkpoint at 4_608 tokens"),
        (("at_tokens=1",), "nearest checkpoints: 3_072"),
    ):
        assert message in said_by(program, f"resume={whole}", *words, status=2)
    old = said_by(program, "action=rewind", f"run={whole}", "at_tokens=3_072", status=2)
    assert "action: 'rewind' has been replaced\n  write resume=RUN at_tokens=N" in old
    assert sorted(one.name for one in (whole / "checkpoints").iterdir()) == before
    assert (whole / "results.json").exists()
