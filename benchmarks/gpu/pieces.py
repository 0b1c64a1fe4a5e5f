"""Cases of single parts of a step: attention, loss, experts; forward and backward.

Inputs are bfloat16 on a device and float32 on a CPU, which has few bfloat16 products.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.gpu.cases import ResultFields
from benchmarks.gpu.observing import peak_memory, this_device
from benchmarks.gpu.own_step import compose_case
from benchmarks.training.loss import IMPLEMENTATIONS, compute_loss
from components.attention_backends import BACKENDS
from components.config.model_spec.feed_forward import ExpertsSpec, MLPSpec
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.model.attention import AttentionContext, AttentionCore
from components.model.mlp import MLP
from components.model.moe import Experts
from components.model.positions import PositionEncoding
from components.profiling.rates import median_seconds

# Variants of attention: ALiBi slopes, documents, dropout.
SCOPES = ("causal", "alibi", "documents", "alibi, dropout")


def measure_attention(words: Sequence[str], document_tokens: int = 1_024) -> ResultFields:
    """Time the attention core of every backend and mask, or return the error.

    FLOPs are causal: half of the whole attention matrix.
    """
    device, recipe = this_device(), compose_case(words)
    rows = []
    for scope in SCOPES:
        context = _attention_context(recipe, scope, device, document_tokens)
        for backend in BACKENDS:
            core = AttentionCore(dropout=0.1 if "dropout" in scope else 0.0, backends=[backend])
            rows.append({"scope": scope, "backend": backend} | _run_core(recipe, core, context))
    return {"rows": rows}


def _attention_context(
    recipe: Recipe, kind: str, device: torch.device, document_tokens: int
) -> AttentionContext:
    """Build the context of a forward pass, with slopes or with documents of equal length."""
    ids = torch.arange(recipe.budget.sequence_length, device=device)
    heads = torch.arange(1, recipe.decoder_spec.attention.num_heads + 1, device=device)
    slopes = 2.0 ** (-8.0 * heads / len(heads)) if "alibi" in kind else None
    rows = recipe.parallelism.microbatch_sequences
    documents = (ids // document_tokens).expand(rows, -1) if kind == "documents" else None
    encoding = PositionEncoding(position_ids=ids, slopes=slopes)
    return AttentionContext(encoding=encoding, documents=documents)


def _run_core(recipe: Recipe, core: AttentionCore, context: AttentionContext) -> ResultFields:
    """Time passes of an attention core, or return its error."""
    shape, device = recipe.decoder_spec.attention, context.encoding.position_ids.device
    rows, length = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    projections = [
        torch.randn(rows, count, length, shape.head_dim, device=device, dtype=_dtype(device))
        for count in heads
    ]
    call = partial(_run_passes, lambda *qkv: core(*qkv, context, first_head=0), projections)
    try:
        seconds = median_seconds(call, device)
    except (RuntimeError, RecipeError) as error:  # no kernel, or not enough memory
        return {"refused": str(error).splitlines()[0]}
    # Two products forward and five backward, half of each matrix (arXiv 2307.08691, section 3).
    flops = 7 * rows * shape.num_heads * length**2 * shape.head_dim
    return {"seconds": seconds, "teraflops_causal": flops / seconds / 1e12}


def measure_loss(words: Sequence[str], tokens: int) -> ResultFields:
    """Measure time and memory of head and loss, in blocks and with logits of all tokens."""
    device, recipe = this_device(), compose_case(words)
    shape, figures = recipe.decoder_spec, {}
    hidden = torch.randn(tokens, shape.dim, device=device, dtype=_dtype(device))
    weight = 0.02 * torch.randn(
        shape.padded_vocab_size, shape.dim, device=device, dtype=_dtype(device)
    )
    targets = torch.randint(shape.vocab_size, (tokens,), device=device)
    for name in IMPLEMENTATIONS:
        if device.type != "cpu":
            torch.get_device_module(device.type).reset_peak_memory_stats(device)
        loss = partial(compute_loss, name, targets=targets)
        call = partial(_run_passes, loss, [hidden, weight])
        figures[name] = {"seconds": median_seconds(call, device), **peak_memory(device)}
    return figures


def measure_experts(words: Sequence[str], tokens: int) -> ResultFields:
    """Time the experts of a layer with their router, and a dense MLP of the same FLOPs."""
    device, recipe = this_device(), compose_case(words)
    shape, mlp = recipe.decoder_spec, recipe.decoder_spec.mlp
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
    figures: ResultFields = {"tokens": tokens}
    matrices = 3 if mlp.gated else 2
    flops = 3 * 2 * tokens * matrices * shape.dim * mlp.ffn_dim * mlp.top_k
    for name, layer in layers.items():
        layer.to(_dtype(device))
        for weight in layer.parameters():
            nn.init.normal_(weight, std=0.02)
        call = partial(_run_passes, layer, [hidden], [*layer.parameters()])
        seconds = median_seconds(call, device)
        figures[name] = {"seconds": seconds, "teraflops": flops / seconds / 1e12}
    figures["share_of_dense"] = figures["dense"]["seconds"] / figures["experts"]["seconds"]
    return figures


def _run_passes(
    call: Callable[..., Tensor], tensors: Sequence[Tensor], weights: Sequence[Tensor] = ()
) -> None:
    """Run a forward pass, and a backward pass to the tensors and weights."""
    inputs = [tensor.detach().requires_grad_() for tensor in tensors]
    output = call(*inputs)
    torch.autograd.grad(output, [*inputs, *weights], torch.ones_like(output))


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16
