"""Collectives of tensor parallelism, the dtype of its sums, and autocast."""

from collections import Counter
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from components.distributed.tensor import split_tensors
from tests.components.distributed import tensor_cases
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import BLOOM, Parts, batch, full
from tests.components.distributed.test_tensor import sequence_parallel
from tests.components.model.comparison import gradient_of
from tests.components.model.operators_seen import Operators

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


@pytest.mark.parametrize("parts", [LLAMA, BLOOM], ids=["llama", "bloom"])
def test_a_layer_costs_two_all_reduces_each_way(two_ranks: Ranks, parts: Parts) -> None:
    for forward, backward in two_ranks(count_collectives, parts, False):
        assert forward == {"allreduce": 2}
        assert backward == {"allreduce": 2}


@pytest.mark.parametrize(("parts", "vectors"), [(LLAMA, 2), (BLOOM, 4 + 2)])
def test_a_sliced_layer_has_the_expected_collectives(two_ranks, parts, vectors):
    """Each rank has the gradients of norms and late biases for its slice, which are summed."""
    scatters = {"reduce_scatter_base": 2}
    for forward, backward in two_ranks(count_collectives, parts, True):
        assert forward == {"allgather_base": 2} | scatters
        again = 2
        assert backward == {"allgather_base": 2 + again, "allreduce": vectors} | scatters


def test_gradients_of_replicated_weights_are_summed_in_the_dtype_of_the_reduction(four_ranks):
    """In bfloat16 256 + 1 is 256; the float32 sum 259 is rounded to 258 or 260."""
    assert four_ranks(summed_in, torch.float32) == [{260.0}] * 4
    assert all(found - {260.0} for found in four_ranks(summed_in, torch.bfloat16))


@pytest.mark.parametrize("parts", [LLAMA, BLOOM], ids=["llama", "bloom"])
@sequence_parallel
def test_autocast_reaches_the_split_parts(two_ranks, parts, sequence_parallel):
    differences = two_ranks(autocast_difference, parts, sequence_parallel)
    assert max(differences) < AUTOCAST_TOLERANCE
