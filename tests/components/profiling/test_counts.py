import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import sdpa_backward_flop, sdpa_flop

from components.profiling.counts import FORMULAS
from components.torch_internals.operators import CPU_ATTENTION, CPU_ATTENTION_BACKWARD

flash = torch.ops.aten._scaled_dot_product_flash_attention
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward


def shaped(heads: int, length: int, depth: int) -> Tensor:
    return torch.empty(2, heads, length, depth, device="meta")


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize(
    ("forward", "backward"), [(CPU_ATTENTION, CPU_ATTENTION_BACKWARD), (flash, flash_backward)]
)
def test_attention_counts_every_query_head(forward, backward: object, kv_heads: int) -> None:
    query, key, value = shaped(8, 32, 16), shaped(kv_heads, 48, 16), shaped(kv_heads, 48, 24)
    sizes = ((32, 24), (48, 16), (48, 24))
    upstream, repeated_key, repeated_value = (shaped(8, *size) for size in sizes)
    # Torch's own formulas, which before 2.13 want as many heads of keys as of queries.
    expected = sdpa_flop(query, repeated_key, repeated_value, out_val=upstream)
    assert FORMULAS[forward](query, key, value, 0.0, True, out_val=upstream) == expected
    expected = sdpa_backward_flop(upstream, query, repeated_key, repeated_value, out_val=query)
    assert FORMULAS[backward](upstream, query, key, value, out_val=query) == expected
