"""What is kept is what would be chosen from all that was ever saved."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.checkpoint.metadata import MARKER, Marker, RunProgress
from components.checkpoint.retention import Policy, drop_after, prune_checkpoints

LOSSES = st.one_of(
    st.none(), st.floats(1.0, 9.0), st.sampled_from([math.nan, math.inf, -math.inf])
)
Run = list[tuple[int, float | None]]
RUNS = st.lists(st.tuples(st.integers(1, 40), LOSSES), min_size=1, max_size=30)
POLICIES = st.builds(
    Policy,
    last=st.integers(1, 3),
    every_tokens=st.one_of(st.just("none"), st.integers(1, 200)),
    best=st.integers(0, 3),
)


def saves(run: Run) -> dict[int, float | None]:
    """Let a run save after so many more tokens each time."""
    tokens, found = 0, dict[int, float | None]()
    for more, loss in run:
        tokens += more
        found[tokens] = loss
    return found


@given(RUNS, POLICIES)
def test_pruning_after_every_save_equals_pruning_at_the_end(run, policy: Policy) -> None:
    there: dict[int, float | None] = {}
    for one, loss in saves(run).items():
        there[one] = loss
        kept = policy.select_retained(there)
        there = {each: there[each] for each in there if each in kept}
    assert there.keys() == policy.select_retained(saves(run))


@given(RUNS, POLICIES)
def test_permanent_checkpoints_are_never_removed(run, policy: Policy) -> None:
    all_of_them, good = [*saves(run).items()], set[int]()
    for count in range(1, len(all_of_them) + 1):
        there = dict(all_of_them[:count])
        kept = policy.select_retained(there)
        assert {*[*there][-policy.last :]} <= kept
        assert good <= kept
        good = policy.select_permanent(there)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (Policy(last=2, every_tokens="none", best=0), {60, 70}),
        (Policy(last=1, every_tokens=25, best=0), {30, 50, 70}),
        (Policy(last=1, every_tokens="none", best=2), {20, 40, 70}),
        (Policy(last=1, every_tokens=100, best=1), {20, 70}),
    ],
    ids=["last", "every", "best", "all"],
)
def test_each_rule_keeps_its_checkpoints(policy: Policy, kept: set[int]) -> None:
    losses = {10: 3.0, 20: 1.0, 30: None, 40: 2.0, 50: 4.0, 60: 5.0, 70: 6.0}
    assert policy.select_retained(losses) == kept


@given(RUNS, POLICIES, st.randoms())
def test_a_loss_that_is_not_finite_counts_as_missing(run, policy, order):
    """NaN compares as neither less nor more, so that a sort leaves it anywhere."""
    there = [*saves(run).items()]
    without = {
        tokens: loss if loss is not None and math.isfinite(loss) else None
        for tokens, loss in there
    }
    order.shuffle(there)
    assert policy.select_retained(dict(there)) == policy.select_retained(without)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_the_best_checkpoint_stays_after_a_run_diverged(missing: float | None) -> None:
    policy = Policy(last=1, every_tokens="none", best=1)
    losses = [3.0, 2.0, missing, missing, missing]
    assert policy.select_retained(dict(enumerate(losses))) == {1, 4}
    assert policy.select_retained({0: missing, 1: 2.0, 2: 3.0}) == {1, 2}
    assert policy.select_retained(dict.fromkeys(range(3), missing)) == {2}


def fake(folder: Path, tokens: int, *, kind: str = "tokens", complete: bool = True) -> Path:
    marker = Marker(
        kind="tokens",
        fingerprint="",
        progress=RunProgress(step=1, tokens=tokens),
        held_out_loss=float(tokens),
        files={},
    )
    target = folder / f"{kind}-{tokens:015d}"
    target.mkdir()
    (target / "a.safetensors").touch()
    if complete:
        (target / MARKER).write_text(marker.to_json())
    return target


def test_old_and_incomplete_checkpoints_are_removed(tmp_path: Path) -> None:
    for tokens in (10, 20, 30, 40):
        fake(tmp_path, tokens)
    fake(tmp_path, 50, complete=False)
    fake(tmp_path, 60, kind=".tokens")
    weights, strange = fake(tmp_path, 10, kind="weights"), fake(tmp_path, 10, kind="mine")
    prune_checkpoints(tmp_path, Policy(last=2, every_tokens="none", best=1))
    names = {f"tokens-{tokens:015d}" for tokens in (10, 30, 40)}
    assert {one.name for one in tmp_path.iterdir()} == {*names, weights.name, strange.name}
    (tmp_path / f"tokens-{10:015d}" / MARKER).write_text("{")  # is none of the best then
    prune_checkpoints(tmp_path, Policy(last=1, every_tokens="none", best=1))
    assert {int(one.name[7:]) for one in tmp_path.glob("tokens-*")} == {30, 40}


def test_a_checkpoint_with_a_damaged_marker_counts_as_saved(tmp_path: Path) -> None:
    damaged = fake(tmp_path, 20)
    (damaged / MARKER).write_text("{")
    fake(tmp_path, 10)
    prune_checkpoints(tmp_path, Policy(last=1, every_tokens="none", best=0))
    assert list(tmp_path.iterdir()) == [damaged]


def test_a_rollback_removes_later_checkpoints(tmp_path: Path) -> None:
    """Else its own weights of the same tokens would never be written."""
    for tokens in (10, 20, 30):
        fake(tmp_path, tokens)
        fake(tmp_path, tokens, kind="weights")
    dropped = drop_after(tmp_path / f"tokens-{10:015d}")
    assert [one.partition("-")[0] for one in dropped] == ["tokens", "weights"] * 2
    assert {int(one.name[7:].strip("-")) for one in tmp_path.iterdir()} == {10}
