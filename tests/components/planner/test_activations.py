"""What layers keep for the backward pass: published figures, and what autograd saves."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from components.build import build_node
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.positions import PositionsSpec
from components.config.schema.sections import RecomputedPart
from components.model.attention_kernels import scaled_dot_product
from components.model.expert_products import grouped_products, sorted_products
from components.planner.activations import (
    _routed,
    count_stored_microbatches,
    layer_bytes_per_token,
)
from components.torch_internals.selective import PRODUCTS
from tests.components.planner.jobs import GIB, LARGE, MIDDLE, SMALL, gpt, job, layout

WHOLE = layout(sequence_parallel=False)


def all_layers(shape: DecoderSpec, length: int, **changes: Any) -> float:
    """Return what all layers keep of one sequence, in GiB."""
    one = job(shape, layout(), sequence_length=length, **changes)
    return shape.num_layers * layer_bytes_per_token(one) * length / GIB


@pytest.mark.parametrize(
    ("shape", "by_length"),
    [
        (SMALL, {1_024: 1.0625, 4_096: 4.25, 16_384: 17}),
        (MIDDLE, {1_024: 4.25, 4_096: 17, 16_384: 68, 131_072: 544}),
        (LARGE, {1_024: 21.25, 4_096: 85, 16_384: 340}),
    ],
)
def test_a_gpt_layer_keeps_34_bytes_a_token_and_width(shape, by_length):
    """Playbook's bars of activations with fused attention, one sequence, in GiB."""
    assert {length: all_layers(shape, length) for length in by_length} == by_length


@pytest.mark.parametrize(
    ("shape", "by_length"),
    [
        (MIDDLE, {1_024: 9.25, 2_048: 28.5, 4_096: 97.0, 8_192: 354.0, 16_384: 1_348.0}),
        (LARGE, {1_024: 46.25, 2_048: 142.5, 4_096: 485.0, 8_192: 1_770.0}),
    ],
)
def test_unfused_attention_adds_5_a_s_over_h(shape, by_length):
    """Korthikanti et al. 2022, table 2: s b h (34 + 5 a s / h); the playbook's first bars."""
    found = {length: all_layers(shape, length, fused_attention=False) for length in by_length}
    assert found == pytest.approx(by_length, abs=0.01)


def test_full_recomputation_keeps_a_layer_s_input_alone() -> None:
    """Playbook: 2 s b h a layer; 1, 5 and 15.8 GiB for 8B, 70B and 405B at 4,096 tokens."""
    kept = [all_layers(shape, 4_096, recompute="full") for shape in (MIDDLE, LARGE)]
    assert kept == [1.0, 5.0]


def test_tensor_ranks_cut_24_of_34_and_all_with_sequence_parallelism() -> None:
    """Korthikanti et al. 2022, table 2; the playbook's 70B at 8 ranks: 32.5 and 10.625 GiB."""
    plain = job(LARGE, layout(tensor=8, sequence_parallel=False))
    assert layer_bytes_per_token(plain) == 8_192 * (10 + 24 / 8)
    assert 80 * layer_bytes_per_token(plain) * 4_096 / GIB == 32.5
    cut = job(LARGE, layout(tensor=8))
    assert 80 * layer_bytes_per_token(cut) * 4_096 / GIB == 10.625


def test_1f1b_keeps_as_many_microbatches_as_ranks_follow_and_gpipe_all() -> None:
    one = job(MIDDLE, layout(pipeline=4))
    assert [count_stored_microbatches(one, rank) for rank in range(4)] == [4, 3, 2, 1]
    gpipe = layout(pipeline=4, schedule="gpipe")
    assert count_stored_microbatches(job(MIDDLE, gpipe), 3) == 8
    pairs = layout(pipeline=4, schedule="interleaved", stages_per_rank=2)
    assert count_stored_microbatches(job(MIDDLE, pairs), 0) == (4 + 6 + 1) / 2


def test_layers_that_do_not_rotate_keep_queries_and_keys_once() -> None:
    kept = {}
    for skip_every in (None, 4, 1):
        rotary = PositionsSpec(base=10_000.0, skip_every=skip_every)
        shape = MIDDLE.model_copy(update={"positions": rotary})
        kept[skip_every] = layer_bytes_per_token(job(shape, layout()))
    turned = 2 * 2 * 4_096  # bytes of a token's queries and keys
    assert kept[None] - kept[4] == turned / 4
    assert kept[None] - kept[1] == turned


def placed(where: str) -> DecoderSpec:
    return MIDDLE.model_copy(update={"norm_placement": where})


def test_a_norm_after_the_mlp_keeps_its_output() -> None:
    shapes = (MIDDLE, placed("after"))
    one, other = (layer_bytes_per_token(job(each, WHOLE), "selective") for each in shapes)
    assert other - one == 2 * 4_096


@pytest.mark.parametrize(
    ("placement", "again", "fewer"),
    [
        ("before", ("mlp", "norms"), 1),
        ("both", ("attention", "mlp", "norms"), 2),
        ("after", ("attention", "mlp", "norms"), 0),
    ],
)
def test_a_recomputed_part_does_not_keep_the_output_of_the_norm_before_it(
    placement: str, again: tuple[RecomputedPart, ...], fewer: int
) -> None:
    parts = job(placed(placement), WHOLE)
    without = tuple(part for part in again if part != "norms")
    less = layer_bytes_per_token(parts, without) - layer_bytes_per_token(parts, again)
    assert less == fewer * 2 * 4_096


def test_norms_on_both_sides_keep_both_branch_outputs() -> None:
    both = placed("both")
    for again in ("none", ("norms",)):  # a recomputed norm keeps its input, too
        kept = [layer_bytes_per_token(job(shape, WHOLE), again) for shape in (MIDDLE, both)]
        assert kept[1] - kept[0] == 2 * 2 * 4_096
    more = 2 * both.num_layers * 4_096 * (both.norm.weight + both.norm.bias)
    assert both.total_parameters - MIDDLE.total_parameters == more


def test_selective_recomputation_keeps_the_scores_that_unfused_attention_multiplies() -> None:
    """Counted from torch: the product of queries and keys, which the `math` kernel makes."""
    heads, length, scores = MIDDLE.attention.num_heads, 64, []
    query = torch.randn(1, heads, length, 8, dtype=torch.bfloat16)

    class Products(TorchDispatchMode):
        @override
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in PRODUCTS and result.shape[-1] == length:
                scores.append(result.nbytes)
            return result

    with Products():
        scaled_dot_product(query, query, query, kernels=["math"], mask=None, dropout=0.0)
    jobs = (
        job(MIDDLE, layout(), sequence_length=length, fused_attention=fused)
        for fused in (True, False)
    )
    fused, unfused = (layer_bytes_per_token(one, "selective") for one in jobs)
    log_sums = 4 * heads * length  # a fused kernel keeps these instead
    assert [(unfused - fused) * length + log_sums] == scores


def test_each_microbatch_in_flight_keeps_its_own_cast_of_a_weight() -> None:
    layer, storages, graphs = nn.Linear(64, 48, bias=False), set[int](), []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bfloat16 and tensor.numel() == layer.weight.numel():
            storages.add(tensor.untyped_storage().data_ptr())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                graphs.append(layer(torch.randn(8, 64, requires_grad=True)))
    assert len(graphs) == len(storages) == 3


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("products", [grouped_products, sorted_products])
def test_experts_keep_the_bytes_that_autograd_saves(products, top_k, gated, bias, monkeypatch):
    dim, tokens, num_experts = 64, 1_024, 8
    sizes = {"num_experts": num_experts, "top_k": top_k, "ffn_dim": 128}
    sizes |= {"gated": gated, "bias": bias}
    node = {"_target_": "components.model.moe.Experts", "_partial_": True, "path": "loop"}
    node |= {"activation": "silu", "renormalize": False, "routing": "uniform", "z_loss": 0.0}
    node |= {"auxiliary_loss": 0.01, "auxiliary_scope": "layer"}
    experts = build_node(node | sizes, "model.mlp")(dim=dim).to(torch.bfloat16)
    monkeypatch.setattr(experts.mixture, "forward", products)
    weights = {parameter.untyped_storage().data_ptr() for parameter in experts.parameters()}
    saved: dict[int, Tensor] = {}  # kept: no other tensor may get its memory

    def pack(tensor: Tensor) -> Tensor:
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    hidden = torch.randn(1, tokens, dim, dtype=torch.bfloat16, requires_grad=True)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        experts(hidden)
    kept = [one.untyped_storage().nbytes() for key, one in saved.items() if key not in weights]
    shape = gpt(dim=dim, num_layers=1, num_heads=4)
    shape = shape.model_copy(update={"mlp": shape.mlp.model_copy(update=sizes)})
    planned = _routed(job(shape, layout())) + 2 * dim  # the input, which the plan counts apart
    # The router's probabilities and the indices of the sorted pairs are not planned.
    router = 8 * num_experts + 32 * top_k
    assert planned < sum(kept) / tokens <= planned + router
