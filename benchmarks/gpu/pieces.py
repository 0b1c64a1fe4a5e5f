"""Cases of one piece of a step by itself: attention, the loss, experts; forward and backward.

Inputs are bfloat16 on a device and float32 on a CPU, which has few products in less.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.device import memory_of, this_device
from benchmarks.gpu.ours import compose
from benchmarks.training.loss import WAYS, loss_of
from components.attention_backends import BACKENDS
from components.config.model_spec.feed_forward import ExpertsSpec, MLPSpec
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.model.attention import AttentionCore, ForwardScope
from components.model.mlp import MLP
from components.model.moe import Experts
from components.model.positions import Placement
from components.preflight.devices import median_seconds

# What attention is asked for: the positions' slopes, documents, dropout.
SCOPES = ("causal", "alibi", "documents", "alibi, dropout")
Found = dict[str, Any]


def attention(words: Sequence[str], document_tokens: int = 1_024) -> Found:
    """Time attention's core by every backend under every mask, or say why it refuses.

    Causal FLOPs are counted: half of the products' whole matrix.
    """
    device, recipe = this_device(), compose(words)
    rows = []
    for scope in SCOPES:
        given = _scope(recipe, scope, device, document_tokens)
        for backend in BACKENDS:
            core = AttentionCore(dropout=0.1 if "dropout" in scope else 0.0, backends=[backend])
            rows.append({"scope": scope, "backend": backend} | _mix(recipe, core, given))
    return {"rows": rows}


def _scope(
    recipe: Recipe, kind: str, device: torch.device, document_tokens: int
) -> ForwardScope:
    """Make what one forward pass shares: places, and slopes or documents of equal length."""
    places = torch.arange(recipe.budget.sequence_length, device=device)
    heads = torch.arange(1, recipe.shape.attention.num_heads + 1, device=device)
    slopes = 2.0 ** (-8.0 * heads / len(heads)) if "alibi" in kind else None
    rows = recipe.parallelism.microbatch_sequences
    documents = (places // document_tokens).expand(rows, -1) if kind == "documents" else None
    return ForwardScope(placement=Placement(places=places, slopes=slopes), documents=documents)


def _mix(recipe: Recipe, core: AttentionCore, scope: ForwardScope) -> Found:
    """Take passes of the core, or say why there is none."""
    shape, device = recipe.shape.attention, scope.placement.places.device
    rows, length = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    given = [
        torch.randn(rows, count, length, shape.head_dim, device=device, dtype=_dtype(device))
        for count in heads
    ]
    call = partial(_passes, lambda *each: core(*each, scope, first_head=0), given)
    try:
        seconds = median_seconds(call, device)
    except (RuntimeError, RecipeError) as error:  # no such kernel here, or too little memory
        return {"refused": str(error).splitlines()[0]}
    # Two products forward and five backward, half of each matrix (arXiv 2307.08691, section 3).
    flops = 7 * rows * shape.num_heads * length**2 * shape.head_dim
    return {"seconds": seconds, "teraflops_causal": flops / seconds / 1e12}


def loss(words: Sequence[str], tokens: int) -> Found:
    """Time head and loss in blocks, and of logits of all tokens, and how much both hold."""
    device, recipe = this_device(), compose(words)
    shape, found = recipe.shape, {}
    hidden = torch.randn(tokens, shape.dim, device=device, dtype=_dtype(device))
    weight = 0.02 * torch.randn(
        shape.padded_vocab_size, shape.dim, device=device, dtype=_dtype(device)
    )
    targets = torch.randint(shape.vocab_size, (tokens,), device=device)
    for way in WAYS:
        if device.type != "cpu":
            torch.get_device_module(device.type).reset_peak_memory_stats(device)
        way_here = partial(_loss, way, targets)
        call = partial(_passes, way_here, [hidden, weight])
        found[way] = {"seconds": median_seconds(call, device), **memory_of(device)}
    return found


def _loss(way: str, targets: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    return loss_of(way, hidden, weight, targets)


def experts(words: Sequence[str], tokens: int) -> Found:
    """Time a layer's experts beside a dense MLP of the same FLOPs, router included in ours."""
    device, recipe = this_device(), compose(words)
    shape, mlp = recipe.shape, recipe.shape.mlp
    assert mlp.num_experts, "the recipe has no experts"
    assert mlp.top_k
    settings = {k: v for k, v in recipe.model["mlp"].items() if not k.startswith("_")}
    with device:
        layers: dict[str, nn.Module] = {
            "experts": Experts(ExpertsSpec(**settings), dim=shape.dim),
            "dense": MLP(
                MLPSpec(
                    ffn_dim=mlp.ffn_dim * mlp.top_k,
                    activation=settings["activation"],
                    gated=mlp.gated,
                    bias=False,
                ),
                dim=shape.dim,
            ),
        }
    hidden = torch.randn(1, tokens, shape.dim, device=device, dtype=_dtype(device))
    found: Found = {"tokens": tokens}
    matrices = 3 if mlp.gated else 2
    flops = 3 * 2 * tokens * matrices * shape.dim * mlp.ffn_dim * mlp.top_k
    for name, layer in layers.items():
        layer.to(_dtype(device))
        for weight in layer.parameters():
            nn.init.normal_(weight, std=0.02)
        seconds = median_seconds(
            partial(_passes, layer, [hidden], [*layer.parameters()]), device
        )
        found[name] = {"seconds": seconds, "teraflops": flops / seconds / 1e12}
    found["share_of_dense"] = found["dense"]["seconds"] / found["experts"]["seconds"]
    return found


def _passes(
    call: Callable[..., Tensor], given: Sequence[Tensor], weights: Sequence[Tensor] = ()
) -> None:
    """Go forward and backward, to all that is given and to the weights."""
    inputs = [one.detach().requires_grad_() for one in given]
    result = call(*inputs)
    torch.autograd.grad(result, [*inputs, *weights], torch.ones_like(result))


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16
