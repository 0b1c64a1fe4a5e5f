"""What unfused attention keeps, counted from the kernel that torch runs."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from components.model.attention_kernels import scaled_dot_product
from components.planner.activations import layer_bytes_per_token
from components.torch_internals.selective import PRODUCTS
from tests.components.planner.jobs import gpt, job, layout

MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)


def test_selective_recomputation_keeps_the_scores_that_unfused_attention_multiplies() -> None:
    """Counted from torch: the product of queries and keys, which the `math` kernel makes."""
    heads, length = MIDDLE.attention.num_heads, 64
    query = torch.randn(1, heads, length, 8, dtype=torch.bfloat16)
    scores = []

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
    kept = [
        layer_bytes_per_token(
            job(MIDDLE, layout(), sequence_length=length, fused_attention=fused), "selective"
        )
        for fused in (True, False)
    ]
    log_sums = 4 * heads * length  # a fused kernel keeps these instead
    assert [(kept[1] - kept[0]) * length + log_sums] == scores
