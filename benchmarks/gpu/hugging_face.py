"""transformers' models at the shapes of a recipe: Llama's, and OLMoE's mixture of experts.

Weights are float32, products bfloat16 under autocast, AdamW torch's fused one. Where the recipe
compiles, the whole model goes through torch's compiler; where it computes again, each layer.
"""

from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.gpu.peers import PeerStep, compiles, recomputes, settings_of
from components.config.recipe import Recipe


class Causal(PeerStep):
    """Take its steps; experts go through grouped products.

    A ``policy`` of ``eager`` loops over the experts instead.
    """

    def __init__(
        self, recipe: Recipe, device: torch.device, *, policy: str = "grouped_mm"
    ) -> None:
        config = _config(recipe)
        config._attn_implementation = "sdpa"
        if recipe.shape.mlp.num_experts:
            config._experts_implementation = policy
        model: Any = _class(recipe)
        with device:
            model = model(config)
        model.train()
        if recomputes(recipe) != "none":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        call = torch.compile(model) if compiles(recipe) else model

        def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                found = call(input_ids=tokens, labels=targets, shift_labels=targets)
            loss: Tensor = found.loss
            return loss

        super().__init__(
            recipe,
            device,
            model=model,
            loss_of=loss_of,
            optimizer=torch.optim.AdamW(model.parameters(), fused=True, **settings_of(recipe)),
            clip=partial(nn.utils.clip_grad_norm_, foreach=True),
        )


def _class(recipe: Recipe) -> Any:
    experts = recipe.shape.mlp.num_experts
    return transformers.OlmoeForCausalLM if experts else transformers.LlamaForCausalLM


def _config(recipe: Recipe) -> Any:
    shape = recipe.shape
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "intermediate_size": shape.mlp.ffn_dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.attention.num_heads,
        "num_key_value_heads": shape.attention.num_kv_heads,
        "max_position_embeddings": recipe.budget.sequence_length,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": shape.tied_embeddings,
        "use_cache": False,
        "pad_token_id": None,
    }
    if not shape.mlp.num_experts:
        return transformers.LlamaConfig(**sizes, head_dim=shape.attention.head_dim)
    return transformers.OlmoeConfig(
        **sizes,
        num_experts=shape.mlp.num_experts,
        num_experts_per_tok=shape.mlp.top_k or 1,
        output_router_logits=True,  # with the loss that balances the experts
    )
