"""The order of each rank's passes is torch's own, and a step's timeline the papers'."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from components.config.batch_ramp import fits_schedule
from components.config.stages import SPLIT_SCHEDULES, StagePlacement, style_of
from components.distributed.pipeline import SCHEDULES
from components.planner.activations import count_stored_microbatches
from components.planner.memory import deciding_ranks
from components.planner.passes import rank_seconds
from components.planner.schedule import (
    Action,
    PassKind,
    RankActions,
    bubble_fraction,
    list_actions,
    most_in_flight,
)
from components.planner.time import plan_time, stage_seconds, timeline_of
from components.planner.timeline import PassSeconds, Timeline, simulate_step
from tests.components.layouts import parallelism
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

KINDS: dict[str, PassKind] = {"F": "forward", "B": "backward", "I": "input", "W": "weights"}
SMALL = gpt(dim=64, num_layers=120, num_heads=4)


@pytest.fixture(params=[2, 3, 4, 5, 8])
def pipeline(request: pytest.FixtureRequest) -> Iterator[int]:
    """The first of so many ranks, of which torch only needs to know the number."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


class Recorder(PipelineStage):
    """A stage that notes which passes torch asks it for, and talks to nobody."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__(nn.Identity(), stage, stages, torch.device("cpu"))
        self.order: list[Action] = []

    def forward_one_chunk(
        self,
        fwd_chunk_id: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        save_forward_output: bool = True,
    ) -> None:
        self.order.append(Action("forward", self.stage_index, fwd_chunk_id))

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: Any = False,
    ) -> None:
        self.order.append(Action("backward", self.stage_index, bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return []

    get_fwd_send_ops, get_bwd_send_ops = get_fwd_recv_ops, get_bwd_recv_ops

    def perform_reduce_grad(self, scale: int) -> None:
        assert scale


def executed(schedule: str, pipeline: int, microbatches: int) -> tuple[RankActions, ...]:
    """Run torch's schedule of single stages: what it prints of 1F1B numbers a rank wrongly."""
    made = []
    for rank in range(pipeline):
        stage = Recorder(rank, pipeline)
        torch_s = SCHEDULES[schedule](stage, microbatches)
        torch_s._initialize_stage = lambda *given: None
        torch_s._step_microbatches([()] * microbatches, [{}] * microbatches)
        made.append(tuple(stage.order))
    return tuple(made)


def listed_by_torch(
    schedule: str, pipeline: int, microbatches: int, stages: int
) -> tuple[RankActions, ...]:
    """Ask torch for its list, and leave out the slots in which a rank waits."""
    where = StagePlacement(pipeline=pipeline, stages_per_rank=stages, style=style_of(schedule))
    held = [
        PipelineStage(nn.Identity(), stage, where.num_stages, torch.device("cpu"))
        for stage in where.stages_of(0)
    ]
    made = SCHEDULES[schedule](held, microbatches)
    ranks = [made.stage_index_to_group_rank[stage] for stage in range(where.num_stages)]
    assert ranks == [where.rank_of(stage) for stage in range(where.num_stages)]
    return tuple(tuple(flat(made.pipeline_order[rank])) for rank in range(pipeline))


def flat(listed: Sequence[Any]) -> Iterator[Action]:
    """Go through passes that overlap one after the other, as torch does."""
    for slot in listed:
        pair: tuple[Any, ...] = () if slot is None else slot.sub_actions or (slot,)
        for action in pair:
            kind = KINDS[action.computation_type.value]
            overlapped = len(pair) > 1 and action is pair[0]
            yield Action(kind, action.stage_index, action.microbatch_index, overlapped)


def counts(schedule: str, pipeline: int) -> list[int]:
    return [
        number
        for number in (*range(pipeline, 3 * pipeline + 3), 32)
        if fits_schedule(number, pipeline=pipeline, schedule=schedule)
    ]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_each_rank_of_one_stage_computes_in_the_order_that_torch_runs(pipeline, schedule):
    for microbatches in counts(schedule, pipeline):
        ours = list_actions(parallelism(schedule=schedule, pipeline=pipeline), microbatches)
        assert ours == executed(schedule, pipeline, microbatches), microbatches


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("interleaved", 2), ("interleaved", 3), ("interleaved", 4), ("zero_bubble", 1),
     ("zero_bubble", 2), ("zero_bubble", 3), ("zbv", 2), ("dualpipev", 2)],
)  # fmt: skip
def test_each_rank_of_several_stages_computes_in_the_order_that_torch_lists(
    pipeline: int, schedule: str, stages: int
) -> None:
    for microbatches in counts(schedule, pipeline):
        where = parallelism(schedule=schedule, pipeline=pipeline, stages_per_rank=stages)
        ours = list_actions(where, microbatches)
        theirs = listed_by_torch(schedule, pipeline, microbatches, stages)
        assert ours == theirs, microbatches


@pytest.mark.parametrize("splits", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero_bubble", 2),
     ("zbv", 2), ("dualpipev", 2)],
)  # fmt: skip
def test_microbatches_in_flight_equal_the_memory_model(schedule, stages, splits):
    for pipeline in (2, 3, 4, 5):
        for microbatches in counts(schedule, pipeline):
            kind = {"schedule": schedule, "stages_per_rank": stages, "splits_backward": splits}
            where = layout(pipeline=pipeline, num_layers=120, **kind)
            one = job(SMALL, where, microbatches=microbatches)
            listed = list_actions(one.layout, microbatches, splits_backward=splits)
            kept = [count_stored_microbatches(one, rank) for rank in range(pipeline)]
            assert kept == [most_in_flight(order) / stages for order in listed]
            decides = max(kept[rank] for rank in deciding_ranks(one))
            assert decides == max(kept)


@pytest.mark.parametrize("schedule", sorted(SPLIT_SCHEDULES))
def test_whole_backward_passes_start_like_torchs_split_passes(schedule: str) -> None:
    listed = partial(
        list_actions, parallelism(schedule=schedule, pipeline=4, stages_per_rank=2), 8
    )
    split, whole = listed(), listed(splits_backward=False)
    for before, after in zip(split, whole, strict=True):
        kept = [action for action in before if action.kind != "weights"]
        assert [action[1:] for action in kept] == [action[1:] for action in after]
        assert {action.kind for action in after} == {"forward", "backward"}


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
def test_equal_stages_have_the_bubble_of_the_paper(schedule, stages, splits):
    for pipeline in (2, 3, 4, 8):
        for microbatches in counts(schedule, pipeline):
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
def test_no_pass_begins_before_what_it_needs_has_ended(choice, rounds, seconds):
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
def test_gpipe_on_unequal_stages_follows_the_formula(rounds: int, seconds: list[float]) -> None:
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
def test_the_stages_of_a_rank_take_its_predicted_seconds(schedule, stages, recompute):
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


def test_only_zero_bubble_splits_weight_gradients() -> None:
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
