"""The timeline of a step: the papers' bubbles on equal stages, and what unequal ones do."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config.batch_ramp import fits_schedule
from components.planner.passes import rank_seconds
from components.planner.schedule import bubble_fraction, list_actions
from components.planner.time import plan_time, stage_seconds, timeline_of
from components.planner.timeline import PassSeconds, Timeline, simulate_step
from tests.components.layouts import parallelism
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

SPEED = ours().speed
LAYOUTS = [
    ("gpipe", 1),
    ("1f1b", 1),
    *(("interleaved", stages) for stages in (2, 3)),
    *(("zero_bubble", stages) for stages in (1, 2, 3)),
    ("zbv", 2),
    ("dualpipev", 2),
]
GPT = gpt(dim=4_096, num_layers=32, num_heads=32)


def drawn(
    schedule: str, stages: int, microbatches: int, seconds: list[float], *, splits: bool = True
) -> Timeline:
    """A backward pass takes twice the forward one, in halves where the schedule parts them."""
    where = parallelism(
        schedule=schedule, pipeline=len(seconds) // stages, stages_per_rank=stages
    )
    listed = list_actions(where, microbatches, splits_backward=splits)
    passes = [PassSeconds(forward=each, backward=2 * each, weights=each) for each in seconds]
    return simulate_step(listed, passes)


@pytest.mark.parametrize("splits", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize(("schedule", "stages"), LAYOUTS)
def test_equal_stages_wait_as_long_as_the_paper_of_the_schedule_says(
    schedule: str, stages: int, splits: bool
) -> None:
    for pipeline in (2, 3, 4, 8):
        for microbatches in range(pipeline, 4 * pipeline + 3):
            if not fits_schedule(microbatches, pipeline=pipeline, schedule=schedule):
                continue
            equal = [1.0] * pipeline * stages
            timeline = drawn(schedule, stages, microbatches, equal, splits=splits)
            where = parallelism(schedule=schedule, pipeline=pipeline, stages_per_rank=stages)
            bubble = bubble_fraction(where, microbatches, splits_backward=splits)
            work = 3 * stages * microbatches
            assert timeline.total_seconds / work - 1 == pytest.approx(bubble, abs=1e-9)
            for rank in range(pipeline):
                waits = bubble / (1 + bubble)
                assert timeline.waiting_fraction(rank) == pytest.approx(waits, abs=1e-9)


@given(
    choice=st.sampled_from(LAYOUTS),
    rounds=st.integers(1, 4),
    seconds=st.lists(st.floats(0.1, 1.0), min_size=2, max_size=6),
)
def test_no_pass_begins_before_what_it_needs_has_ended(
    choice: tuple[str, int], rounds: int, seconds: list[float]
) -> None:
    schedule, stages = choice
    rounds += schedule == "dualpipev"  # two microbatches a rank at least
    timeline = drawn(schedule, stages, rounds * len(seconds), seconds * stages)
    blocks = [block for line in timeline.ranks for block in line.blocks]
    times = {(b.kind, b.stage, b.microbatch): (b.start, b.end) for b in blocks}
    assert len(times) == len(blocks)
    whole = {kind: [key[1:] for key in times if key[0] == kind] for kind, *_ in times}
    back = [*whole.get("backward", ()), *whole.get("input", ())]
    passed = set(product(range(len(seconds) * stages), range(rounds * len(seconds))))
    assert sorted(back) == sorted(whole["forward"]) == sorted(passed)
    assert sorted(whole.get("weights", ())) == sorted(whole.get("input", ()))
    ends = {(kind == "forward", *key): end for (kind, *key), (_, end) in times.items()
            if kind != "weights"}  # fmt: skip
    last = len(seconds) * stages - 1
    for (kind, stage, number), (start, _) in times.items():
        needed = {
            "forward": (True, stage - 1, number),
            "backward": (stage == last, stage + (stage < last), number),
            "weights": (False, stage, number),
        }["backward" if kind == "input" else kind]
        assert ends.get(needed, 0.0) <= start
    for line in timeline.ranks:
        assert all(before.end <= after.start for before, after in pairwise(line.blocks))


@settings(max_examples=60)
@given(rounds=st.integers(1, 6), seconds=st.lists(st.floats(0.2, 1.0), min_size=2, max_size=8))
def test_on_unequal_stages_gpipe_takes_what_the_formula_says_and_1f1b_no_longer(
    rounds: int, seconds: list[float]
) -> None:
    microbatches = rounds * len(seconds)
    formula = 3 * (max(seconds) * (microbatches - 1) + sum(seconds))
    assert drawn("gpipe", 1, microbatches, seconds).total_seconds == pytest.approx(formula)
    lean = drawn("1f1b", 1, microbatches, seconds).total_seconds
    busy = 3 * max(seconds) * microbatches
    assert busy * (1 - 1e-12) <= lean <= formula * (1 + 1e-12)


def test_1f1b_hides_filling_behind_a_slow_stage_in_the_middle() -> None:
    """By hand, p = m = 3, passes of 1, 2, 1 and 2, 4, 2: a formula that adds 3 + 3 is late."""
    timeline = drawn("1f1b", 1, 3, [1.0, 2.0, 1.0])
    middle = [(b.kind[0], b.microbatch, b.start, b.end) for b in timeline.ranks[1].blocks]
    assert middle == [
        ("f", 0, 1.0, 3.0),
        ("f", 1, 3.0, 5.0),
        ("b", 0, 6.0, 10.0),
        ("f", 2, 10.0, 12.0),
        ("b", 1, 12.0, 16.0),
        ("b", 2, 16.0, 20.0),
    ]
    assert timeline.total_seconds == 22.0 < 3 * (2 * 3 + 1 + 1)


@pytest.mark.parametrize("recompute", ["none", "full", ("attention",), ("mlp", "norms")])
@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 1), ("interleaved", 2)])
def test_the_stages_of_a_rank_take_its_predicted_seconds(
    schedule: str, stages: int, recompute: str | tuple[str, ...]
) -> None:
    where = layout(pipeline=4, schedule=schedule, stages_per_rank=stages)
    one, machine = job(GPT, where, recompute=recompute), hopper()
    parts = stage_seconds(one, machine, SPEED)
    for rank in range(4):
        total = sum(part.forward + part.backward for part in parts[rank::4])
        assert total == pytest.approx(rank_seconds(one, rank, machine, SPEED))
    # Messages and the host's share are not gone through again.
    again = 0.98 if recompute == "full" else 0
    assert parts[0].backward >= (2 + again) * parts[0].forward * (1 - 1e-12)
    assert parts[-1].forward > parts[0].forward


def test_weight_gradients_come_apart_only_for_zero_bubble() -> None:
    where = layout(pipeline=4, schedule="zero_bubble", stages_per_rank=2)
    parts = stage_seconds(job(GPT, where), hopper(), SPEED)
    assert parts[0].forward == parts[0].weights == pytest.approx(parts[0].input)
    where.others["splits_backward"] = False
    assert stage_seconds(job(GPT, where), hopper(), SPEED)[0].weights == 0


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_planned_step_lasts_as_long_as_its_timeline(schedule: str) -> None:
    one, machine = job(GPT, layout(pipeline=4, schedule=schedule)), hopper()
    planned = plan_time(one, machine, SPEED)
    drawn_seconds = timeline_of(one, machine, SPEED).total_seconds
    assert drawn_seconds == pytest.approx(planned.microbatches + planned.bubble)
