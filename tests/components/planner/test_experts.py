"""What experts add to a step: operators and bytes counted in the code, the rest by hand."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.mtp import MTPSpec
from components.model.expert_products import Matrices, mix_in_loop, sorted_products
from components.planner import activations, memory, states
from components.planner.experts import copied_bytes, count_expert_starts, host_reads
from components.planner.job import ExpertPath, TrainingJob
from components.planner.passes import head_seconds, layer_parts, layers_parts, load_factor
from components.planner.plan import plan_recipe
from components.planner.products import layer_products
from components.planner.result import Plan
from components.planner.states import rank_parameters
from components.planner.time import averaged_bytes, evaluation_seconds, plan_time
from components.report.plan_tables import time_sheet
from tests.components.planner.jobs import gpt, hopper, job, layout, ours, with_values
from tests.recipes.compositions import compose

SPEED = ours().speed
TOKENS, DIM, FFN, TOP_K = 48, 32, 24, 2
PATHS: tuple[ExpertPath, ...] = ("loop", "sorted", "grouped")
# They make another shape of a tensor, or room: no kernel is started for them.
VIEWS = frozenset({
    *("alias", "as_strided", "detach", "empty", "empty_like", "expand", "new_empty"),
    *("permute", "select", "slice", "split_with_sizes", "squeeze", "t", "transpose"),
    *("unbind", "unsqueeze", "view", "_reshape_alias", "_unsafe_view"),
})
# In place, of an expert's rows alone.
OF_ROWS = frozenset({"index", "index_put", "index_select"})


class Started(TorchDispatchMode):
    """Count operators, and the bytes of tensors of all tokens that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.moved = 0, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        self.count += name not in VIEWS
        if name not in VIEWS | OF_ROWS:
            whole = [x for x in (*args, found) if isinstance(x, Tensor)]
            self.moved += sum(x.nbytes for x in whole if x.numel() == TOKENS * DIM)
        return found


def passes(path: Callable[..., Tensor], experts: int, *, gated: bool) -> list[int]:
    """Return operators and bytes forward, then both backward."""

    def leaf(*sizes: int) -> Tensor:
        return torch.ones(*sizes, dtype=torch.bfloat16, requires_grad=True)

    first = torch.arange(TOKENS) % experts
    chosen = torch.stack([first, (first + 1) % experts], 1)
    matrices = Matrices(
        leaf(experts, FFN, DIM) if gated else None,
        leaf(experts, FFN, DIM),
        leaf(experts, DIM, FFN),
        torch.nn.functional.silu,
    )
    forward, backward = Started(), Started()
    with forward:
        mixed = path(leaf(TOKENS, DIM), leaf(TOKENS, TOP_K), chosen, matrices)
    upstream = torch.ones_like(mixed)
    with backward:
        mixed.backward(upstream)
    return [forward.count, forward.moved, backward.count, backward.moved]


def of_experts(path: str, *, gated: bool = True, **changes: Any) -> TrainingJob:
    """A layer of four experts, top 2, whose sizes are those of `passes`."""
    mlp = FeedForwardSpec(ffn_dim=FFN, gated=gated, num_experts=4, top_k=TOP_K)
    shape = gpt(dim=DIM, num_layers=4, num_heads=4).model_copy(update={"mlp": mlp})
    where = changes.pop("where", layout(num_layers=4))
    changes = {"sequence_length": TOKENS} | changes
    return job(shape, where, expert_path=path, **changes)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("path", [mix_in_loop, sorted_products])
def test_host_starts_of_an_expert_are_counted_in_the_code(path, gated):
    one = of_experts("loop" if path is mix_in_loop else "sorted", gated=gated)
    four, eight = (passes(path, experts, gated=gated) for experts in (4, 8))
    added = [more - less for less, more in zip(four, eight, strict=True)]
    assert tuple(count_expert_starts(one)) == (added[0], added[2])
    assert tuple(copied_bytes(one)) == ((added[1], added[3]) if path is mix_in_loop else (0, 0))


def test_grouped_products_start_nothing_for_an_expert_and_the_loop_reads_for_each() -> None:
    assert tuple(count_expert_starts(of_experts("grouped"))) == (0, 0)
    assert [host_reads(of_experts(path)) for path in PATHS] == [4, 1, 0]
    assert host_reads(job(gpt(dim=64, num_layers=4, num_heads=4), layout())) == 0


@pytest.mark.parametrize(
    ("dispatch", "bound", "parts", "reads"),
    [
        ("all_gather", None, 1, [2, 2, 1]),
        ("all_gather", None, 2, [4, 4, 2]),
        ("all_to_all", None, 2, [5, 3, 1]),
        ("all_to_all", 1.5, 2, [4, 2, 0]),
    ],
)
def test_the_host_reads_sizes_between_expert_ranks(dispatch, bound, parts, reads):
    """docs/experts.md: numbers of pairs here, or of all messages unless these are bounded."""
    exchange = {"expert_dispatch": dispatch, "expert_capacity_factor": bound}
    where = layout(expert=2, num_layers=4, expert_overlap=parts, **exchange)
    assert [host_reads(of_experts(path, where=where)) for path in PATHS] == reads


def test_the_loop_copies_all_tokens_that_its_rank_has() -> None:
    alone = copied_bytes(of_experts("loop")).both_passes
    gathered = layout(expert=2, num_layers=4)
    exchanged = layout(expert=2, num_layers=4, expert_dispatch="all_to_all")
    assert copied_bytes(of_experts("loop", where=gathered)).both_passes == alone / 2 * 2
    assert copied_bytes(of_experts("loop", where=exchanged)).both_passes == alone / 2 * TOP_K


def test_the_fullest_rank_has_a_share_of_the_fullest_expert() -> None:
    four = layout(expert=4, num_layers=4)
    two = layout(expert=2, num_layers=4)
    assert load_factor(of_experts("sorted", where=four), SPEED) == 1.25
    assert load_factor(of_experts("sorted", where=two), SPEED) == 1 + 0.25 / 2**0.5
    assert load_factor(of_experts("sorted"), SPEED) == 1
    assert load_factor(of_experts("sorted", where=four, even_load=True), SPEED) == 1
    steep = SPEED.model_copy(update={"fullest_expert": 9.0})
    assert load_factor(of_experts("sorted", where=four), steep) == 4


def test_a_repeated_pass_sends_tokens_but_no_results() -> None:
    """Of four ways a fifth: dry runs counted so (169.2 MB for 135.0 without recomputation)."""
    where = layout(expert=2, num_layers=4)
    once, twice = (
        {
            layer_parts(of_experts("sorted", where=where, recompute=again), hopper(), SPEED)[
                "expert collectives"
            ]
            for again in ways
        }
        for ways in (("none", "selective", ("attention",)), ("full", ("mlp",)))
    )
    assert len(once) == len(twice) == 1
    assert twice.pop() == pytest.approx(1.25 * once.pop())


def test_plain_expert_ranks_average_among_data_ranks_and_then_their_shards() -> None:
    """A dry run of such a layout sent what is counted: 2,142 and 165 MB, tokens included."""
    where = layout(data=6, expert=2, zero=1, num_layers=4, expert_aware=False)
    plain = of_experts("sorted", where=where, reduce_bytes=2)
    dense, expert, *_ = rank_parameters(plain, 0)
    axes, scattered, spread = zip(*averaged_bytes(plain, 0), strict=True)
    assert axes == ("data", "data", "expert")
    parts = [2 * dense * 5 / 6, 2 * expert * 5 / 6]
    assert scattered == pytest.approx([*parts, 2 * 2 * dense / 6 / 2])
    assert spread == pytest.approx([*parts, 0.0])
    aware = plain.with_layout(expert_aware=True)
    groups = Counter(axis for axis, *_ in averaged_bytes(aware, 0))
    assert groups == {"dense": 1, "data": 1}


def planned(*words: str) -> Plan:
    words = ("cluster=aurora", "parallelism.overlap=false", *words)
    return plan_recipe(compose("mula20b_a2b", *words))


def test_path_router_and_optimizer_add_their_planned_time() -> None:
    words = ("model.mlp.path=loop", "parallelism.expert_aware=false")
    plan = planned(*words)
    found = plan.planned_experts
    assert found is not None
    even, aware = planned(*words, "model.mlp.routing=uniform"), planned("model.mlp.path=loop")
    step, even_load, aware_step = (
        one.time.total_seconds for one in (plan, even, aware) if one.time is not None
    )
    assert step - even_load == pytest.approx(found.load_seconds)
    assert step - aware_step == pytest.approx(found.plain_seconds)
    assert min(found.load_seconds, found.plain_seconds, found.path_seconds) > 0
    said = {row[0]: row[1] for row in time_sheet(plan, now=None).rows}
    assert said["experts"].startswith("in a loop with a host synchronization before each: ")
    assert "assumed: 1.25 on the fullest expert" in said["  load"]
    assert said["  plain optimizer"].startswith("12 expert ranks duplicate dense state: ")


def test_a_dense_model_has_no_experts_row() -> None:
    sheet = time_sheet(planned("model.mlp.routing=uniform"), now=None)
    assert {row[0]: row[1] for row in sheet.rows}["  load"] == "forced to be uniform"
    assert plan_recipe(compose("mula1b", "cluster=aurora")).planned_experts is None


def test_grouped_products_fill_the_device_with_few_rows() -> None:
    few = of_experts("sorted", sequence_length=4_096)
    free = with_values(SPEED, launch_seconds=0.0, call_seconds=0.0, read_seconds=0.0)
    jobs = (replace(few, expert_path=path) for path in PATHS[::-1])
    seconds = [plan_time(one, hopper(), free).total_seconds for one in jobs]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]


SHARED = FeedForwardSpec(ffn_dim=512, gated=True, num_experts=8, top_k=2, shared_ffn_dim=1_024)
DENSE = FeedForwardSpec(ffn_dim=4_096, gated=True)


def mixture(**changes: int) -> TrainingJob:
    """Twelve layers in two stages over two expert ranks, the first two of them dense."""
    shape = gpt(num_layers=12, dim=1_024, num_heads=8)
    parts = {"mlp": SHARED, "dense_mlp": DENSE, "num_dense_layers": 2, "tied_embeddings": False}
    shape = shape.model_copy(update=parts)
    cut = layout(pipeline=2, layers_by_stage=(6, 6), expert=2, data_shard=2, **changes)
    return job(shape, cut)


def test_the_stages_hold_every_parameter_of_the_model() -> None:
    model = mixture()
    ranks = [states.rank_parameters(model, rank) for rank in (0, 1)]
    held = sum(rank.dense + 2 * rank.expert for rank in ranks)
    shape = model.shape
    norms = shape.norm.count_parameters(shape.dim)
    assert held + norms == shape.total_parameters + shape.padding_parameters
    assert ranks[0].expert == 4 * 8 * SHARED.expert_parameters(1_024) / 2
    assert ranks[1].expert == 6 * 8 * SHARED.expert_parameters(1_024) / 2


@pytest.mark.parametrize("tied", [False, True])
def test_the_last_stage_has_the_mtp_depths_and_the_embedding(tied: bool) -> None:
    changes = {"mtp": MTPSpec(depth=2, loss_weight=0.1), "tied_embeddings": tied}
    plain = mixture()
    shape = with_values(plain.shape, tied_embeddings=tied)
    further = replace(plain, shape=with_values(shape, **changes), mtp_depth=2)
    further = further.with_layout(recompute_every=5)
    held = [states.rank_parameters(further, rank) for rank in (0, 1)]
    count = sum(rank.dense + 2 * rank.expert for rank in held)
    norms, again = shape.norm.count_parameters(shape.dim), states.end_matrix(plain)
    total = shape.total_parameters + shape.padding_parameters + further.shape.mtp_parameters
    assert count + norms == total + again
    assert held[1].expert == (6 + 2) * 8 * SHARED.expert_parameters(1_024) / 2
    assert held[1].ends == (1 if tied else 2) * again
    assert further.layer_kinds((1,))[0][1:] == (8, 1)  # of layers 6 to 13 number 10 again
    alone = replace(further, mtp_depth=0)
    one, more = (head_seconds(x, hopper(), ours().speed) for x in (alone, further))
    assert more[1] == pytest.approx(3 * one[1])
    assert more[0] > 3 * one[0]
    windows = {"sources": 1, "windows_per_source": 4}
    evaluated = {evaluation_seconds(x, hopper(), SPEED, **windows) for x in (alone, further)}
    assert len(evaluated) == 1


def test_the_first_stage_has_the_dense_layers_and_the_second_has_none() -> None:
    model = mixture()
    assert [kind[1:] for kind in model.layer_kinds((0,))] == [(4, 4), (2, 2)]
    assert [kind[1:] for kind in model.layer_kinds((1,))] == [(6, 6), (0, 0)]
    third = model.with_layout(recompute_every=3)
    assert [kind[1:] for kind in third.layer_kinds((0,))] == [(4, 1), (2, 1)]  # layers 3 and 0


def test_a_shared_expert_is_two_products_more_of_all_tokens() -> None:
    model = mixture()
    without = replace(model, shape=with_values(model.shape, mlp={"shared_ffn_dim": None}))
    flops = [sum(one.num_flops for one in layer_products(each)) for each in (model, without)]
    assert flops[0] - flops[1] == 2 * model.microbatch_tokens * 3 * 1_024 * 1_024
    kept = [activations.layer_bytes_per_token(each) for each in (model, without)]
    assert kept[0] - kept[1] == 2 * 4 * 1_024  # into the activation, its gate, and out of both


def test_the_gate_of_a_shared_expert_is_one_more_column_and_keeps_its_input() -> None:
    model = mixture()
    gated = replace(model, shape=with_values(model.shape, mlp={"shared_gate": True}))
    flops = [sum(one.num_flops for one in layer_products(each)) for each in (gated, model)]
    assert flops[0] - flops[1] == 2 * model.microbatch_tokens * 1_024
    for recompute in ("none", "selective"):
        jobs = [each.with_layout(recompute=recompute) for each in (gated, model)]
        kept = [activations.layer_bytes_per_token(each) for each in jobs]
        assert kept[0] - kept[1] == 2 * (1_024 + 1)  # the expert's output, and the gate


def test_a_stage_takes_the_seconds_of_its_layers_of_both_kinds() -> None:
    model, speed = mixture(), ours().speed
    whole = layers_parts(model, 0, hopper(), speed)
    experts, dense = (layer_parts(one, hopper(), speed) for one in (model, model.dense_job))
    both = {name: 4 * experts[name] + 2 * dense[name] for name in experts}
    assert whole == pytest.approx(both)
    assert dense["expert collectives"] == 0
    assert experts["expert collectives"] > 0


def test_activations_include_both_kinds_of_layers() -> None:
    model, bare = mixture(), with_values(ours().memory, fragmentation=1.0, stage_outputs=0.0)
    stored, recomputed = memory._activations(model, 0, bare)
    assert recomputed == 0
    first = stored / activations.count_stored_microbatches(model, 0)
    each = [activations.layer_bytes_per_token(one) for one in (model, model.dense_job)]
    assert first == pytest.approx((4 * each[0] + 2 * each[1]) * model.microbatch_tokens)
