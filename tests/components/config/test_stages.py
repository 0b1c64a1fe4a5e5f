"""Where ranks, stages and microbatches go: as torch deals them, and what is refused."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.testing._internal.distributed.fake_pg import FakeStore

from components.config.batch_ramp import fits_schedule
from components.config.limits import nearest_multiples
from components.config.rank_groups import MESH_AXES, Node, RankGroups
from components.config.stages import StagePlacement, splits_backward, style_of
from components.distributed.mesh import build_mesh
from components.distributed.pipeline import SCHEDULES
from tests.components.config.helpers import assert_refused, refusals
from tests.components.layouts import ORDER, parallelism
from tests.recipes.compositions import compose


@pytest.mark.parametrize(
    ("style", "stages", "of_ranks"),
    [
        ("loop", 1, [(0,), (1,), (2,)]),
        ("loop", 2, [(0, 3), (1, 4), (2, 5)]),
        ("v", 2, [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_every_stage_is_on_its_rank(style, stages, of_ranks):
    placement = StagePlacement(pipeline=3, stages_per_rank=stages, style=style)
    assert [placement.stages_of(rank) for rank in range(3)] == of_ranks
    for rank, held in enumerate(of_ranks):
        assert [placement.rank_of(stage) for stage in held] == [rank] * stages
    assert placement.has_both_ends == (style == "v")


def test_a_single_rank_has_both_ends_in_every_schedule() -> None:
    for words in ((), ("parallelism.schedule=zbv", "parallelism.stages_per_rank=2")):
        recipe = compose("teuken7b", "cluster.ranks=1", *words)
        assert recipe.stage_placement.num_stages == 1
        assert recipe.stage_placement.has_both_ends


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        (("schedule=zero_bubble",), True),
        (("schedule=zbv",), True),
        (("schedule=dualpipev",), True),
        (("schedule=interleaved",), False),
        (("schedule=zbv", "recompute=full"), False),
        (("schedule=zbv", "recompute=[mlp]"), False),
        (("schedule=zbv", "compile=layers"), False),
    ],
)
def test_backward_passes_stay_whole_where_layers_are_compiled_or_recomputed(words, splits):
    named = [f"parallelism.{word}" for word in ("stages_per_rank=2", *words)]
    recipe = compose("teuken7b", "scale=full", *named)
    assert splits_backward(recipe.parallelism) == splits


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
def test_legal_microbatches_are_accepted_by_torch(pipeline: int, schedule: str) -> None:
    for microbatches in range(1, 14):
        fits = fits_schedule(microbatches, pipeline=pipeline, schedule=schedule)
        accepted = torch_accepts(microbatches, pipeline=pipeline, schedule=schedule)
        assert fits == (accepted and microbatches >= pipeline), microbatches


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_a_pipeline_any_number_of_microbatches_fits(schedule: str) -> None:
    assert all(fits_schedule(n, pipeline=1, schedule=schedule) for n in range(1, 20))


FEW = "parallelism.data=1 parallelism.pipeline=16 cluster=juwels "
FEW += "budget.global_batch_tokens=65_536 parallelism.microbatch_sequences=2"
NODES = "recipe=mula1b scale=mini cluster=aurora cluster.nodes=2"
SEVERAL = "parallelism.stages_per_rank=2 parallelism.schedule"


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(
        r"""
scale=full $FEW
    budget\.global_batch_tokens: 65,536 tokens are 8 microbatches per step and rank, but \
    1f1b on 16 pipeline ranks needs at least 16
    set the batch to a multiple of 131_072 tokens, or parallelism\.microbatch_sequences=1$
$NODES budget.global_batch_tokens=4_096
    .* are not a multiple of 24 data ranks x 1 sequences.*
    nearest valid value: 6_144$
$NODES budget.global_batch_tokens=8_192
    .* are not a multiple of 24 data ranks x 1 sequences.*
    nearest valid values: 6_144 and 12_288$
recipe=bloom176b scale=full parallelism.pipeline=14
    budget\.ramp_up: 393,216 tokens are 12 .* 14 pipeline ranks needs at least 14
    .*458_752 tokens, or .*sequences=1$
recipe=bloom176b scale=full $SEVERAL=dualpipev
    12 pipeline ranks needs at least 24
    .*=1$
recipe=gpt175b scale=full $SEVERAL=interleaved
    100 microbatches .* interleaved on 16 pipeline ranks needs a multiple of 6 \(rounds\)
    set the batch to a multiple of 98_304 tokens, or .*=5, 10, 12, 15$
""",
        FEW=FEW,
        NODES=NODES,
        SEVERAL=SEVERAL,
    ),
)
def test_a_batch_that_the_ranks_cannot_share_is_refused(words: str, message: str) -> None:
    assert_refused(words, message)


@pytest.mark.parametrize(
    ("name", "words", "batches", "sizes"),
    [
        ("teuken7b", f"scale=full {FEW}", ["131_072"], [1]),
        ("mula1b", NODES.partition(" ")[2], ["6_144", "12_288"], []),
        (
            "gpt175b",
            f"scale=full {SEVERAL}=interleaved",
            ["589_824", "688_128"],
            [5, 10, 12, 15],
        ),
    ],
)
def test_each_named_remedy_works(name, words, batches, sizes):
    for way in (
        *(f"budget.global_batch_tokens={tokens}" for tokens in batches),
        *(f"parallelism.microbatch_sequences={size}" for size in sizes),
    ):
        key = way.partition("=")[0]
        compose(name, *(one for one in words.split() if not one.startswith(f"{key}=")), way)


def test_only_a_single_multiple_is_near_a_small_number() -> None:
    assert nearest_multiples(3, 4) == "nearest valid value: 4"
    assert nearest_multiples(1_030, 4) == "nearest valid values: 1_028 and 1_032"


AURORA = ("data", "pipeline", "expert", "context", "tensor")


def shown(nodes: tuple[Node, ...]) -> list[tuple[int, list[int]]]:
    return [(node.number, [d.rank for d in node.devices if d.first_copy]) for node in nodes]


@pytest.mark.parametrize("order", [ORDER, AURORA])
def test_every_rank_has_the_coordinates_of_the_device_mesh(order: tuple[str, ...]) -> None:
    degrees = {"data": 2, "expert": 3, "context": 2, "tensor": 2, "pipeline": 4}
    where = parallelism(**degrees, rank_order=order)
    groups = RankGroups(where, 8)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=where.num_ranks)
    try:
        mesh = build_mesh("cpu", where)
        for rank in range(where.num_ranks):
            (place,) = (mesh.root.mesh == rank).nonzero().tolist()
            named = dict(zip(MESH_AXES, place, strict=True))
            named["data"] = named.pop("data_replicate") * 2 + named.pop("data_shard")
            assert groups.find_coordinates(rank) == named
    finally:
        dist.destroy_process_group()


def test_a_slow_pipeline_axis_spreads_the_first_copy_over_far_nodes() -> None:
    groups = RankGroups(parallelism(data=128, tensor=2, pipeline=2), 4)
    assert shown(groups.first_copy_nodes()) == [(0, [0, 1]), (64, [256, 257])]


def test_a_slow_data_axis_gives_the_first_copy_whole_neighbouring_nodes() -> None:
    groups = RankGroups(parallelism(data=32, pipeline=8, expert=12, rank_order=AURORA), 12)
    nodes = shown(groups.first_copy_nodes())
    assert nodes == [
        (number, list(range(12 * number, 12 * number + 12))) for number in range(8)
    ]


def test_the_first_copy_has_every_rank_of_one_model_and_no_other() -> None:
    groups = RankGroups(parallelism(data=3, tensor=2, pipeline=2, expert=2, context=2), 12)
    ranks = [rank for _, held in shown(groups.first_copy_nodes()) for rank in held]
    assert ranks == [
        r for r in range(groups.layout.num_ranks) if groups.find_coordinates(r)["data"] == 0
    ]


def test_labels_name_the_axes_that_are_used() -> None:
    groups = RankGroups(parallelism(data=16, tensor=2, pipeline=2), 4)
    assert groups.format_label(groups.first_copy_nodes()[1].devices[1], " ") == "d0 t1 p1"
    assert groups.label_legend == "d data of 16, t tensor of 2, p pipeline of 2"
    alone = RankGroups(parallelism(), 1)
    assert alone.format_label(alone.first_copy_nodes()[0].devices[0], " ") == "all"
    assert alone.label_legend == ""
