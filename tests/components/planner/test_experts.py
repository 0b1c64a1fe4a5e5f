"""What experts add to a step: operators and bytes counted in the code, the rest by hand."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.recipe import Recipe
from components.model.expert_products import Matrices, mix_in_loop, sorted_products
from components.planner.experts import copied_bytes, count_expert_starts, host_reads
from components.planner.job import ExpertPath, TrainingJob
from components.planner.passes import layer_parts, load_factor
from components.planner.plan import plan_recipe
from components.planner.result import Plan
from components.planner.states import rank_parameters
from components.planner.time import averaged_bytes, plan_time
from components.report.plan_tables import time_sheet
from tests.components.planner.jobs import gpt, hopper, job, layout, ours

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
def test_what_the_host_starts_for_an_expert_is_counted_in_the_code(
    path: Callable[..., Tensor], gated: bool
) -> None:
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
def test_what_the_host_reads_beside_expert_ranks(
    dispatch: str, bound: float | None, parts: int, reads: list[int]
) -> None:
    """docs/experts.md: numbers of pairs here, or of all messages unless these are bounded."""
    where = layout(
        expert=2,
        num_layers=4,
        expert_dispatch=dispatch,
        expert_capacity_factor=bound,
        expert_overlap=parts,
    )
    found = [
        host_reads(of_experts(path, where=where)) for path in ("loop", "sorted", "grouped")
    ]
    assert found == reads


def test_the_loop_copies_all_tokens_that_its_rank_has() -> None:
    alone = copied_bytes(of_experts("loop")).both_passes
    gathered = layout(expert=2, num_layers=4)
    exchanged = layout(expert=2, num_layers=4, expert_dispatch="all_to_all")
    assert copied_bytes(of_experts("loop", where=gathered)).both_passes == alone / 2 * 2
    assert copied_bytes(of_experts("loop", where=exchanged)).both_passes == alone / 2 * TOP_K


def test_the_fullest_rank_has_what_chance_leaves_of_the_fullest_expert() -> None:
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
    collectives = {
        again: layer_parts(of_experts("sorted", where=where, recompute=again), hopper(), SPEED)[
            "expert collectives"
        ]
        for again in ("none", "selective", "full", ("attention",), ("mlp",))
    }
    none = collectives["none"]
    assert collectives["selective"] == collectives[("attention",)] == none
    assert collectives["full"] == collectives[("mlp",)] == pytest.approx(1.25 * none)


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
    return plan_recipe(recipe_of(*words))


def recipe_of(*words: str) -> Recipe:
    common = ("recipe=mula20b_a2b", "cluster=aurora", "parallelism.overlap=false")
    return compose_recipe(read_point([*common, *words]))


def test_path_router_and_optimizer_each_change_the_step_by_what_the_plan_says() -> None:
    words = ("model.mlp.path=loop", "parallelism.expert_aware=false")
    plan = planned(*words)
    found, step = plan.planned_experts, plan.time
    assert found is not None
    assert step is not None
    even = planned(*words, "model.mlp.routing=uniform").time
    aware = planned("model.mlp.path=loop").time
    assert even is not None
    assert aware is not None
    assert step.total_seconds - even.total_seconds == pytest.approx(found.load_seconds)
    assert step.total_seconds - aware.total_seconds == pytest.approx(found.plain_seconds)
    assert min(found.load_seconds, found.plain_seconds, found.path_seconds) > 0
    said = {row[0]: row[1] for row in time_sheet(plan, now=None).rows}
    assert said["experts"].startswith("in a loop with a host synchronization before each: ")
    assert "assumed: 1.25 on the fullest expert" in said["  load"]
    assert said["  plain optimizer"].startswith("12 expert ranks duplicate dense state: ")


def test_a_dense_model_has_no_experts_row_and_an_even_one_says_so() -> None:
    recipe = recipe_of("model.mlp.routing=uniform")
    sheet = time_sheet(plan_recipe(recipe), now=None)
    said = {row[0]: row[1] for row in sheet.rows}
    assert said["  load"] == "forced to be uniform"
    dense = compose_recipe(read_point(["recipe=mula1b", "cluster=aurora"]))
    assert plan_recipe(dense).planned_experts is None


def test_grouped_products_of_few_rows_fill_the_device_that_single_ones_do_not() -> None:
    few = of_experts("sorted", sequence_length=4_096)
    free = SPEED.model_copy(
        update=dict.fromkeys(("launch_seconds", "call_seconds", "read_seconds"), 0.0)
    )
    jobs = (replace(few, expert_path=path) for path in PATHS[::-1])
    seconds = [plan_time(one, hopper(), free).total_seconds for one in jobs]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]
