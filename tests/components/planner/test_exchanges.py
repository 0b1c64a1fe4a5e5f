"""What context ranks send each other, by hand, in the program, and in a step's time."""

import pytest
import torch
from torch import Tensor

from components.attention_backends import BACKENDS
from components.config.model_spec.attention import AttentionSpec
from components.distributed import collectives
from components.distributed.context import ContextCore, SequencePart
from components.distributed.mesh import build_mesh
from components.dryrun.fake_world import fake_world
from components.model.attention import AttentionContext, AttentionCore
from components.model.positions import PositionEncoding
from components.planner.activations import layer_bytes_per_token
from components.planner.communication import (
    context_seconds,
    expert_bytes,
    expert_seconds,
    gather_bandwidth,
    get_latency,
    key_value_bytes,
)
from components.planner.job import TrainingJob
from components.planner.time import plan_time
from tests.components.layouts import parallelism
from tests.components.planner.jobs import gpt, hopper, job, layout, ours, with_values

HEADS, GROUPS, HEAD_DIM, LENGTH = 8, 2, 16, 64
SMALL = gpt(dim=128, num_layers=4, num_heads=HEADS).model_copy(
    update={
        "attention": AttentionSpec(
            num_heads=HEADS, num_kv_heads=GROUPS, head_dim=HEAD_DIM, bias=False
        )
    }
)


MIXTURE = with_values(SMALL, mlp={"num_experts": 16, "top_k": 8})


def split(ranks: int, **changes: object) -> TrainingJob:
    where = layout(context=ranks, num_layers=4)
    return job(SMALL, where, sequence_length=LENGTH, microbatch_sequences=3, **changes)


def test_keys_and_values_of_a_part_are_counted_by_hand() -> None:
    """2 tensors x 2 heads x 16 numbers x 3 sequences x 16 tokens x 2 bytes."""
    assert key_value_bytes(split(4)) == 2 * 2 * 16 * 3 * 16 * 2
    halves = split(4).with_layout(tensor=2)
    assert key_value_bytes(halves) == key_value_bytes(split(4)) / 2
    copies = split(4).with_layout(tensor=8)
    assert key_value_bytes(copies) == key_value_bytes(split(4)) / 2


def test_the_program_sends_the_counted_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: dict[str, list[int]] = {"gather": [], "scatter": []}

    def gather(whole: Tensor, part: Tensor, group: object, async_op: bool) -> None:
        whole.zero_()
        moved["gather"].append(part.numel() * part.element_size())

    def scatter(part: Tensor, whole: Tensor, group: object, async_op: bool) -> None:
        part.zero_()
        moved["scatter"].append(part.numel() * part.element_size())

    monkeypatch.setattr(collectives, "all_gather", gather)
    monkeypatch.setattr(collectives, "reduce_scatter", scatter)
    with fake_world(1, 4):
        axis = build_mesh("cpu", parallelism(context=4)).get_axis("context")
        core = ContextCore(AttentionCore(dropout=0.0, backends=BACKENDS), axis)
        attend(core, SequencePart(rank=1, ranks=4)).sum().backward()
    sent = key_value_bytes(split(4))
    assert moved == {"gather": [sent], "scatter": [sent]}


def attend(core: AttentionCore, part: SequencePart) -> Tensor:
    """Mix one rank's tokens."""
    length = LENGTH // part.ranks
    places = part.position_ids(length, torch.device("cpu"))
    query, key, value = (
        torch.zeros(3, heads, length, HEAD_DIM, dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, GROUPS, GROUPS)
    )
    scope = AttentionContext(encoding=PositionEncoding(position_ids=places), documents=None)
    output: Tensor = core(query, key, value, scope, first_head=0)
    return output


def kept_by_attention(core: AttentionCore, ranks: int) -> int:
    """Count what autograd and the next layer keep of one rank's tokens, but for normalizers."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mixed = attend(core, SequencePart(rank=0, ranks=ranks))
    kept[mixed.untyped_storage().data_ptr()] = mixed
    # Attention also saves masks (on a CPU) and log-sum-exp values, which are not counted.
    wide = (one for one in kept.values() if one.ndim == 4 and one.dtype == torch.bfloat16)
    return sum(one.untyped_storage().nbytes() for one in wide)


@pytest.mark.parametrize("ranks", [2, 4])
def test_context_ranks_keep_the_counted_bytes(ranks, monkeypatch):
    """Autograd's saved tensors; CPU kernels process the two chunks separately."""
    monkeypatch.setattr(collectives, "all_gather", lambda *_, **__: None)
    core = AttentionCore(dropout=0.0, backends=BACKENDS)
    with fake_world(1, ranks):
        axis = build_mesh("cpu", parallelism(context=ranks)).get_axis("context")
        tokens = 3 * LENGTH
        more = kept_by_attention(ContextCore(core, axis), ranks) * ranks / tokens
        more -= kept_by_attention(core, 1) / tokens
    kept = [
        layer_bytes_per_token(split(degree, uses_sdpa=True, dropout=False), "none")
        for degree in (1, ranks)
    ]
    assert kept[1] - kept[0] == more


def test_a_gather_takes_the_others_parts_over_the_link_and_a_latency() -> None:
    """249.8 GB/s past each rank inside a node of the H100 profile, 23 us a collective."""
    expected = 3 * key_value_bytes(split(4)) / 249.8e9 + 2.3e-5
    assert context_seconds(split(4), hopper()) == pytest.approx(expected)
    assert context_seconds(split(1), hopper()) == 0.0


def test_recomputed_attention_gathers_once_more() -> None:
    """Without recomputation once forward and once backward; free hosts make it visible."""
    speed = ours().speed.model_copy(update={"launch_seconds": 0.0})
    slow = with_values(hopper(), inside={"latency_seconds": 1.0})

    def added(recompute: str) -> float:
        one = split(4, recompute=recompute, microbatches=1)
        return (
            plan_time(one, slow, speed).microbatches
            - plan_time(one, hopper(), speed).microbatches
        )

    assert added("none") == pytest.approx(4 * 2 * 1.0, rel=1e-3)
    assert added("full") == pytest.approx(4 * 3 * 1.0, rel=1e-3)


def test_context_ranks_on_several_nodes_make_a_step_longer_than_on_one() -> None:
    times = []
    for per_node in (8, 2):
        where = layout(context=8, devices_per_node=per_node)
        one = job(gpt(dim=4_096, num_layers=32, num_heads=32), where, sequence_length=32_768)
        times.append(plan_time(one, hopper(), ours().speed).microbatches)
    assert times[0] < times[1]


@pytest.mark.parametrize(
    ("dispatch", "bound", "tokens"),
    [
        ("all_gather", None, 3),
        ("all_to_all", None, 8 * 3 / 4),
        ("all_to_all", 1.5, 1.5 * 8 * 3 / 4),
        ("all_to_all", 9.0, 4 * 8 * 3 / 4),
    ],
)
def test_what_an_expert_rank_sends_is_counted_by_hand(dispatch, bound, tokens):
    """Of each token top 8 over four ranks; a bound sends so much more, all pairs at most."""
    where = layout(
        expert=4, num_layers=4, expert_dispatch=dispatch, expert_capacity_factor=bound
    )
    one = job(MIXTURE, where, sequence_length=LENGTH)
    assert expert_bytes(one) == 2 * LENGTH * SMALL.dim * tokens


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_rows_of_a_bounded_exchange_are_kept_with_their_padding(recompute: str) -> None:
    kept = []
    for bound in (None, 1.0, 1.5, 2.0):
        where = layout(
            expert=4, num_layers=4, expert_dispatch="all_to_all", expert_capacity_factor=bound
        )
        one = job(MIXTURE, where, recompute=recompute)
        kept.append(layer_bytes_per_token(one))
    assert kept[0] == kept[1]
    assert kept[2] - kept[1] == pytest.approx(kept[3] - kept[2])
    # What goes into an expert's activation at least, two bytes a number.
    assert kept[2] - kept[1] >= 0.5 * 8 * 2 * MIXTURE.mlp.ffn_dim


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("computed_per_way", [0.01, 0.4, 0.9, 1.1, 2.5, 40.0])
def test_partial_exchanges_add_channel_and_device_time(
    parts: int, computed_per_way: float
) -> None:
    where = layout(expert=4, num_layers=4, expert_overlap=parts)
    several = job(gpt(dim=4_096, num_layers=4, num_heads=8), where, sequence_length=4_096)
    place = several.rank_groups.find_group("expert")
    hardware = hopper()
    rate = gather_bandwidth(hardware, place, several.devices_per_node)
    way = expert_bytes(several) / parts / rate + get_latency(hardware, place)
    computed = computed_per_way * way
    channel = [way * (part + 1) for part in range(parts)]  # all depart at once
    free, ended = channel[-1], 0.0
    for there in channel:
        ended = max(ended, there) + computed
        free = max(free, ended) + way
    assert expert_seconds(several, hardware, parts * computed) == pytest.approx(
        free - parts * computed
    )
