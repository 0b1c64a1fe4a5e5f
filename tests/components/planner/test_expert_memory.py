"""What a mixture keeps for its backward pass, as planned and as autograd saves it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from components.build import build_node
from components.model.expert_products import grouped_products, sorted_products
from components.planner.activations import _routed
from tests.components.planner.jobs import gpt, job, layout

Products = Callable[..., Tensor]
DIM, FFN_DIM, NUM_EXPERTS, TOKENS = 64, 128, 8, 1_024


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("products", [grouped_products, sorted_products])
def test_experts_keep_what_autograd_saves(
    products: Products, top_k: int, gated: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"_target_": "components.model.moe.Experts", "_partial_": True, "ffn_dim": FFN_DIM}
    node |= {"num_experts": NUM_EXPERTS, "top_k": top_k, "activation": "silu", "gated": gated}
    node |= {"renormalize": False, "routing": "uniform", "z_loss": 0.0, "path": "loop"}
    node |= {"bias": bias, "auxiliary_loss": 0.01, "auxiliary_scope": "layer"}
    experts = build_node(node, "model.mlp")(dim=DIM).to(torch.bfloat16)
    monkeypatch.setattr(experts.mixture, "forward", products)
    weights = {parameter.untyped_storage().data_ptr() for parameter in experts.parameters()}
    tensors: list[Tensor] = []
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
            tensors.append(tensor)  # no other tensor may get its memory
        return tensor

    hidden = torch.randn(1, TOKENS, DIM, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        experts(hidden)
    per_token = sum(saved.values()) / TOKENS
    shape = gpt(dim=DIM, num_layers=1, num_heads=4)
    mlp = {"num_experts": NUM_EXPERTS, "top_k": top_k, "ffn_dim": FFN_DIM, "gated": gated}
    mlp |= {"bias": bias}
    shape = shape.model_copy(update={"mlp": shape.mlp.model_copy(update=mlp)})
    planned = _routed(job(shape, layout())) + 2 * DIM  # the input, which the plan counts apart
    # The router's probabilities and the indices of the sorted pairs are not planned.
    router = 8 * NUM_EXPERTS + 32 * top_k
    assert planned < per_token <= planned + router
