"""Which numbers of microbatches run: torch's own schedules decide, and every batch is asked."""

import re
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.batch_ramp import fits_schedule
from components.config.limits import nearest_multiples
from components.config.recipe import Recipe
from components.config.stages import StagePlacement, style_of
from components.errors import RecipeError

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}


def compose(recipe: str, *words: str) -> Recipe:
    return compose_recipe(read_point([f"recipe={recipe}", *words]))


@pytest.fixture(params=[2, 3, 4])
def pipeline(request: pytest.FixtureRequest) -> Iterator[int]:
    """The first of so many ranks, of which torch only needs to know the number."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def torch_accepts(microbatches: int, *, pipeline: int, schedule: str) -> bool:
    kind = SCHEDULES[schedule]
    several = 2 if issubclass(kind, PipelineScheduleMulti) else 1
    device = torch.device("cpu")
    where = StagePlacement(pipeline=pipeline, stages_per_rank=several, style=style_of(schedule))
    stages = [
        PipelineStage(nn.Identity(), stage, where.num_stages, device)
        for stage in where.stages_of(0)
    ]
    given = stages if several > 1 else stages[0]
    try:
        kind(given, microbatches)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_fits_is_what_torch_accepts_unless_ranks_would_idle_all_the_time(
    pipeline: int, schedule: str
) -> None:
    for microbatches in range(1, 14):
        fits = fits_schedule(microbatches, pipeline=pipeline, schedule=schedule)
        accepted = torch_accepts(microbatches, pipeline=pipeline, schedule=schedule)
        assert fits == (accepted and microbatches >= pipeline), microbatches


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_a_pipeline_any_number_fits(schedule: str) -> None:
    assert all(fits_schedule(n, pipeline=1, schedule=schedule) for n in range(1, 20))


def test_too_few_microbatches_are_refused_with_batches_and_sizes_that_work() -> None:
    words = ("scale=full", "parallelism.data=1", "parallelism.pipeline=16", "cluster=juwels")
    batch = ("budget.global_batch_tokens=65_536", "parallelism.microbatch_sequences=2")
    with pytest.raises(RecipeError) as caught:
        compose("teuken7b", *words, *batch)
    assert str(caught.value) == (
        "budget.global_batch_tokens: 65,536 tokens are 8 microbatches per step and rank, but "
        "1f1b on 16 pipeline ranks needs at least 16\n"
        "  set the batch to a multiple of 131_072 tokens, or "
        "parallelism.microbatch_sequences=1"
    )
    compose("teuken7b", *words, "budget.global_batch_tokens=131_072", batch[1])
    compose("teuken7b", *words, batch[0], "parallelism.microbatch_sequences=1")


@pytest.mark.parametrize(
    ("batch", "remedy"),
    [
        ("4_096", "nearest valid value: 6_144"),
        ("8_192", "nearest valid values: 6_144 and 12_288"),
    ],
    ids=["less than one sequence a rank", "between two"],
)
def test_a_batch_that_the_ranks_cannot_share_is_refused_with_words_that_work(
    batch: str, remedy: str
) -> None:
    words = ("scale=mini", "cluster=aurora", "cluster.nodes=2")
    with pytest.raises(RecipeError) as caught:
        compose("mula1b", *words, f"budget.global_batch_tokens={batch}")
    problem, _, way_out = str(caught.value).partition("\n  ")
    assert "are not a multiple of 24 data ranks x 1 sequences" in problem
    assert way_out == remedy
    for tokens in re.findall(r"[0-9_]+", way_out):
        compose("mula1b", *words, f"budget.global_batch_tokens={tokens}")


def test_the_smallest_batch_of_a_ramp_is_asked_too() -> None:
    assert compose("bloom176b", "scale=full").derived_numbers.microbatches_per_step == 128
    with pytest.raises(
        RecipeError,
        match=r"budget\.ramp_up: 393,216 tokens are 12 .* 14 pipeline ranks needs at least 14\n"
        r".*458_752 tokens, or .*sequences=1$",
    ):
        compose("bloom176b", "scale=full", "parallelism.pipeline=14")


def test_dualpipev_wants_a_microbatch_for_each_of_its_stages() -> None:
    words = ("scale=full", "parallelism.schedule=dualpipev", "parallelism.stages_per_rank=2")
    with pytest.raises(RecipeError, match=r"12 pipeline ranks needs at least 24\n.*=1$"):
        compose("bloom176b", *words)


def test_rounds_that_are_not_equal_are_refused_with_batches_on_both_sides() -> None:
    words = ("scale=full", "parallelism.schedule=interleaved", "parallelism.stages_per_rank=2")
    with pytest.raises(
        RecipeError,
        match=r"100 microbatches .* interleaved on 16 pipeline ranks needs a multiple of 6 "
        r"\(rounds\)\n  set the batch to a multiple of 98_304 tokens, or .*=5, 10, 12, 15$",
    ):
        compose("gpt175b", *words)
    for way_out in (
        "budget.global_batch_tokens=589_824",
        "budget.global_batch_tokens=688_128",
        *(f"parallelism.microbatch_sequences={size}" for size in (5, 10, 12, 15)),
    ):
        compose("gpt175b", *words, way_out)


def test_only_one_multiple_is_near_what_is_less_than_all() -> None:
    assert nearest_multiples(3, 4) == "nearest valid value: 4"
    assert nearest_multiples(1_030, 4) == "nearest valid values: 1_028 and 1_032"
