"""Collectives of tensor parallelism, and its combination with stages and shards."""

import copy
from collections import Counter
from typing import Literal, cast

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.tensor import split_tensors
from components.model.decoder import Decoder
from tests.components.distributed import tensor_cases
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import BLOOM, Parts, batch, full, gradients
from tests.components.distributed.test_tensor import sequence_parallel
from tests.components.model.comparison import gradient_of
from tests.components.model.operators_seen import Operators
from tests.components.model.specs import RMS_NORM

COLLECTIVES = ("c10d.", "_c10d_functional.")


def count_collectives(parts: Parts, sequence_parallel: bool) -> list[dict[str, int]]:
    """Count the collectives of one additional layer, forward and backward."""
    passes: list[list[Counter[str]]] = []
    for num_layers in (1, 2):
        whole = tensor_cases.randomized(parts._replace(num_layers=num_layers))
        decoder = tensor_cases.split_copy(whole, sequence_parallel=sequence_parallel)
        tokens, targets, _ = batch()
        with Operators(COLLECTIVES) as forward:
            loss = decoder.compute_loss(tokens, targets)
        with Operators(COLLECTIVES) as backward:
            torch.autograd.backward(loss)
        passes.append([collectives_of(forward), collectives_of(backward)])
    fewer, more = passes
    return [dict(two - one) for one, two in zip(fewer, more, strict=True)]


def collectives_of(seen: Operators) -> Counter[str]:
    """Count all but waits; torch's ``CommDebugMode`` fails if a module is called twice."""
    calls = {name.split(".")[1].strip("_"): count for name, count in seen.counts.items()}
    return Counter({name: count for name, count in calls.items() if "wait" not in name})


def summed_in(reduce: torch.dtype) -> set[float]:
    """Return the sums of gradients 256, 1, 1 and 1 of a bfloat16 norm, one on each rank."""
    decoder = tensor_cases.build(Parts()).to(torch.bfloat16)
    split_tensors(decoder, tensor_cases.tensor_mesh(), sequence_parallel=True, reduce=reduce)
    norm = cast("nn.Module", decoder.final_norm)
    share = 1.0 if torch.distributed.get_rank() else 256.0
    unit = torch.ones(1, 1, 24, dtype=torch.bfloat16)
    torch.autograd.backward(norm(unit), torch.full_like(unit, share))
    found = full(cast("Tensor", norm.weight).grad)
    assert found.dtype == torch.bfloat16
    return set(found.tolist())


def run_in_stages(parts: Parts, sequence_parallel: bool) -> tensor_cases.Difference:
    """Run a decoder in three stages, each split over tensor ranks."""
    whole = tensor_cases.randomized(parts)
    tokens, targets, _ = batch()
    expected = whole.compute_loss(tokens, targets)
    torch.autograd.backward(expected)
    stages = [_stage(whole, layers, of=3) for layers in range(3)]
    for stage in stages:
        split_tensors(stage, tensor_cases.tensor_mesh(), sequence_parallel=sequence_parallel)
    hidden = tokens
    slices = tensor_cases.tensor_mesh().size() if sequence_parallel else 1
    for stage in stages[:-1]:
        hidden = stage(hidden)
        assert hidden.shape == (len(tokens), tokens.shape[1] // slices, 24)
        assert type(hidden) is Tensor
    loss = stages[-1](hidden, targets=targets)
    torch.autograd.backward(loss)
    difference = tensor_cases.relative(loss.detach(), expected.detach())
    return tensor_cases.Difference(
        difference, *tensor_cases.worst(whole, _sum_gradients(stages))
    )


def _stage(whole: Decoder, number: int, *, of: int) -> Decoder:
    """Copy one pipeline stage of one layer."""
    stage = copy.deepcopy(whole)
    stage.zero_grad()
    for index in set(stage.layers) - {str(number)}:
        del stage.layers[index]
    if number > 0:
        stage.embedding_norm = None
        if any(True for _ in cast("nn.Module", stage.positions).parameters()):
            stage.positions = None
        if number < of - 1 or stage.head is not None:
            stage.embedding = None
    if number < of - 1:
        stage.final_norm = stage.head = None
    return stage


def _sum_gradients(stages: list[Decoder]) -> dict[str, Tensor]:
    """Sum gradients over all stages; each tied end has a share."""
    sums: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            sums[name] = sums.get(name, 0) + full(parameter.grad)
    return sums


def shard_too(parts: Parts, sequence_parallel: bool) -> tensor_cases.Difference:
    """Train 2 x 2 ranks, data x tensor; each data rank has its own sequences."""
    whole, mesh = tensor_cases.randomized(parts), tensor_cases.mesh_of(2, 2)
    split = copy.deepcopy(whole)
    split_tensors(split, mesh["tensor"], sequence_parallel=sequence_parallel)
    for module in (*split.layers.values(), split):
        fully_shard(module, mesh=mesh["data"])
    tokens, targets, _ = batch(sequences=4)
    losses = []
    for _ in range(2):  # the second pass accumulates
        expected = whole.compute_loss(tokens, targets)
        torch.autograd.backward(expected)
        mine = slice(2, 4) if mesh["data"].get_local_rank() else slice(0, 2)
        loss = split.compute_loss(tokens[mine], targets[mine])
        torch.autograd.backward(loss)
        total = loss.detach().clone()
        torch.distributed.all_reduce(total, group=mesh["data"].get_group())
        losses.append(tensor_cases.relative(total / 2, expected.detach()))
    return tensor_cases.Difference(max(losses), *tensor_cases.worst(whole, gradients(split)))


def checkpointing_difference(
    parts: Parts, sequence_parallel: bool, recompute: Literal["selective", "full"] | list[str]
) -> float:
    """Return the largest gradient difference caused by checkpointing."""
    plain = tensor_cases.split_copy(
        tensor_cases.randomized(parts), sequence_parallel=sequence_parallel
    )
    thrifty = tensor_cases.split_copy(
        tensor_cases.randomized(parts), sequence_parallel=sequence_parallel
    )
    checkpoint_activations(thrifty, recompute)
    tokens, targets, _ = batch()
    for decoder in (plain, thrifty):
        torch.manual_seed(7)
        torch.autograd.backward(decoder.compute_loss(tokens, targets))
    pairs = zip(plain.parameters(), thrifty.parameters(), strict=True)
    return max((full(a.grad) - full(b.grad)).abs().max().item() for a, b in pairs)


def start_on_meta(parts: Parts) -> None:
    """Split on ``meta``, materialize, and run a step of a ``foreach`` optimizer."""
    with torch.device("meta"):
        decoder, names = (
            tensor_cases.build(parts),
            [name for name, _ in tensor_cases.build(parts).named_parameters()],
        )
    split_tensors(decoder, tensor_cases.tensor_mesh(), sequence_parallel=True)
    placements = [p.placements for p in decoder.parameters() if isinstance(p, DTensor)]
    decoder.to_empty(device="cpu")
    assert [name for name, _ in decoder.named_parameters()] == names
    assert [p.placements for p in decoder.parameters() if isinstance(p, DTensor)] == placements
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.fill_(0.1)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.1, foreach=True)
    tokens, targets, _ = batch()
    torch.autograd.backward(decoder.compute_loss(tokens, targets))
    optimizer.step()
    assert all(bool((full(p.detach()) != 0.1).any()) for p in decoder.parameters())


def autocast_difference(parts: Parts, sequence_parallel: bool) -> float:
    """Compute in bfloat16 over float32 weights, whole and split."""
    whole = tensor_cases.randomized(parts).float()
    split = tensor_cases.split_copy(whole, sequence_parallel=sequence_parallel)
    tokens, targets, _ = batch()
    losses = []
    for decoder in (whole, split):
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(decoder.compute_loss(tokens, targets))
        torch.autograd.backward(losses[-1])
    difference = max(
        tensor_cases.relative(full(q.grad), gradient_of(p))
        for p, q in zip(whole.parameters(), split.parameters(), strict=True)
        if p.dim() > 1
    )
    return max(difference, tensor_cases.relative(losses[1].detach(), losses[0].detach()))


AUTOCAST_TOLERANCE = 0.04  # a dozen roundings to bfloat16, 0.004 each

LLAMA = Parts()
SHARED_GROUP = Parts(num_kv_heads=1, qk_norm=RMS_NORM)


@pytest.mark.parametrize("parts", [LLAMA, BLOOM], ids=["llama", "bloom"])
def test_a_layer_costs_two_all_reduces_each_way(two_ranks: Ranks, parts: Parts) -> None:
    for forward, backward in two_ranks(count_collectives, parts, False):
        assert forward == {"allreduce": 2}
        assert backward == {"allreduce": 2}


@pytest.mark.parametrize(("parts", "vectors"), [(LLAMA, 2), (BLOOM, 4 + 2)])
def test_a_sliced_layer_has_the_expected_collectives(
    two_ranks: Ranks, parts: Parts, vectors: int
) -> None:
    """Each rank has the gradients of norms and late biases for its slice, which are summed."""
    scatters = {"reduce_scatter_base": 2}
    for forward, backward in two_ranks(count_collectives, parts, True):
        assert forward == {"allgather_base": 2} | scatters
        again = 2
        assert backward == {"allgather_base": 2 + again, "allreduce": vectors} | scatters


def test_gradients_of_replicated_weights_are_summed_in_the_dtype_of_the_reduction(
    four_ranks: Ranks,
) -> None:
    """In bfloat16 256 + 1 is 256; the float32 sum 259 is rounded to 258 or 260."""
    assert four_ranks(summed_in, torch.float32) == [{260.0}] * 4
    assert all(found - {260.0} for found in four_ranks(summed_in, torch.bfloat16))


@pytest.mark.quick("sliced-llama")
@pytest.mark.parametrize(
    "parts",
    [LLAMA, tensor_cases.GPT, BLOOM, tensor_cases.GEMMA3],
    ids=["llama", "gpt", "bloom", "gemma 3"],
)
@sequence_parallel
def test_stages_pass_hidden_states_as_plain_tensors(
    two_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    three_layers = parts._replace(num_layers=3)
    tensor_cases.assert_small(two_ranks(run_in_stages, three_layers, sequence_parallel))


@pytest.mark.quick("sliced-bloom")
@pytest.mark.parametrize(
    "parts", [LLAMA, BLOOM, SHARED_GROUP], ids=["llama", "bloom", "shared group"]
)
@sequence_parallel
def test_shards_over_a_data_axis_change_nothing(
    four_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    tensor_cases.assert_small(four_ranks(shard_too, parts, sequence_parallel))


@pytest.mark.long
@pytest.mark.parametrize("recompute", ["selective", "full", ["attention", "norms"], ["mlp"]])
@sequence_parallel
def test_checkpointing_changes_no_bit_of_a_gradient_dropout_included(
    two_ranks: Ranks,
    sequence_parallel: bool,
    recompute: Literal["selective", "full"] | list[str],
) -> None:
    drops = BLOOM._replace(dropout=0.1, attention_dropout=0.2)
    assert two_ranks(checkpointing_difference, drops, sequence_parallel, recompute) == [0, 0]


def test_parameters_on_meta_keep_their_names_and_placements(two_ranks: Ranks) -> None:
    two_ranks(start_on_meta, tensor_cases.GPT)


@pytest.mark.parametrize("parts", [LLAMA, BLOOM], ids=["llama", "bloom"])
@sequence_parallel
def test_autocast_reaches_the_split_parts(
    two_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    differences = two_ranks(autocast_difference, parts, sequence_parallel)
    assert max(differences) < AUTOCAST_TOLERANCE
