"""A finished run goes back to an earlier checkpoint and on again, as a user asks for it."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.life.conftest import TINY, Program, entries

WORDS = (
    *(word for word in TINY if not word.startswith(("budget.total", "checkpoint."))),
    *("budget.total_tokens=6_144", "checkpoint.every_tokens=3_072", "checkpoint.keep=9"),
    "checkpoint.weights_every_tokens=1_536",
)


def said_by(program: Program, *words: str, status: int = 0) -> str:
    done = program(*words, status=status)
    return done.stdout + done.stderr


def weights(checkpoint: Path) -> dict[str, Tensor]:
    files = sorted(checkpoint.glob("*.safetensors"))
    return {name: x for file in files for name, x in load_file(file).items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(one[name].equal(other[name]) for name in one)


@pytest.mark.long
def test_with_its_optimizer_it_ends_in_the_same_bits_and_with_a_fresh_one_elsewhere(
    home: Path, program: Program
) -> None:
    run = home / "rewound"
    said_by(program, *WORDS, f"run={run}")
    last = run / "checkpoints" / f"tokens-{6_144:015d}"
    whole = weights(last)
    said = said_by(program, f"resume={run}", "at_tokens=3_072")
    assert f"moved to {run}/checkpoints/left: tokens-{6_144:015d}" in said
    assert same(weights(last), whole)
    said_by(program, f"resume={run}", "at_tokens=4_608", "fresh_optimizer=true")
    fresh = weights(last)
    assert not same(fresh, whole)
    assert {int(x) for name, x in fresh.items() if name.endswith(".step")} == {3}  # 9 to 12
    rewinds, resumes = entries(run, "rewind"), entries(run, "resume")
    assert [one["step"] for one in rewinds] == [one["step"] for one in resumes] == [6, 9]
    held = [one["loss"] for one in entries(run, "step")]
    assert len(held) == 12 + 6 + 3


@pytest.mark.long
def test_what_cannot_be_gone_back_to_is_said_and_nothing_is_touched(
    home: Path, program: Program
) -> None:
    run = home / "kept"
    said_by(program, *WORDS, f"run={run}")
    before = sorted(one.name for one in (run / "checkpoints").iterdir())
    for words, message in (
        ((), "has finished"),
        (("fresh_optimizer=true",), "at_tokens: fresh_optimizer requires a checkpoint"),
        (("at_tokens=4_608",), "at_tokens: no checkpoint at 4_608 tokens"),
        (("at_tokens=1",), "nearest checkpoints: 3_072"),
    ):
        assert message in said_by(program, f"resume={run}", *words, status=2)
    old = said_by(program, "action=rewind", f"run={run}", "at_tokens=3_072", status=2)
    assert "action: 'rewind' has been replaced\n  write resume=RUN at_tokens=N" in old
    assert sorted(one.name for one in (run / "checkpoints").iterdir()) == before
    assert (run / "results.json").exists()
