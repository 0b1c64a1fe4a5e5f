"""The order of each rank's passes is torch's own, action by action."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from components.config.batch_ramp import fits_schedule
from components.config.stages import SPLIT_SCHEDULES, StagePlacement, style_of
from components.distributed.pipeline import SCHEDULES
from components.planner.activations import count_stored_microbatches
from components.planner.memory import deciding_ranks
from components.planner.schedule import (
    Action,
    PassKind,
    RankActions,
    list_actions,
    most_in_flight,
)
from tests.components.layouts import parallelism
from tests.components.planner.jobs import gpt, job, layout

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
def test_each_rank_of_one_stage_computes_in_the_order_that_torch_runs(
    pipeline: int, schedule: str
) -> None:
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
def test_the_microbatches_in_flight_are_those_that_memory_counts(
    schedule: str, stages: int, splits: bool
) -> None:
    for pipeline in (2, 3, 4, 5):
        for microbatches in counts(schedule, pipeline):
            where = layout(
                pipeline=pipeline,
                schedule=schedule,
                stages_per_rank=stages,
                num_layers=120,
                splits_backward=splits,
            )
            one = job(SMALL, where, microbatches=microbatches)
            listed = list_actions(one.layout, microbatches, splits_backward=splits)
            kept = [count_stored_microbatches(one, rank) for rank in range(pipeline)]
            assert kept == [most_in_flight(order) / stages for order in listed]
            decides = max(kept[rank] for rank in deciding_ranks(one))
            assert decides == max(kept)


@pytest.mark.parametrize("schedule", sorted(SPLIT_SCHEDULES))
def test_whole_backward_passes_come_where_torch_would_begin_split_ones(schedule: str) -> None:
    listed = partial(
        list_actions, parallelism(schedule=schedule, pipeline=4, stages_per_rank=2), 8
    )
    split, whole = listed(), listed(splits_backward=False)
    for before, after in zip(split, whole, strict=True):
        kept = [action for action in before if action.kind != "weights"]
        assert [action[1:] for action in kept] == [action[1:] for action in after]
        assert {action.kind for action in after} == {"forward", "backward"}
