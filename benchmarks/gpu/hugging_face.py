"""Steps of transformers' Llama and OLMoE at the shapes of a recipe.

Weights are float32, matrix products bfloat16 under autocast, and AdamW is torch's fused one. If
the recipe compiles layers, the whole model is compiled; if it recompute_mode, each layer does.
"""

from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.gpu.peers import PeerStep, adamw_kwargs, is_compiled, recompute_mode
from components.config.recipe import Recipe


class Causal(PeerStep):
    """Steps of a causal language model of transformers.

    Experts use grouped products; ``policy="eager"`` loops over the experts instead.
    """

    def __init__(
        self, recipe: Recipe, device: torch.device, *, policy: str = "grouped_mm"
    ) -> None:
        config: Any = _config(recipe)
        model_class: Any = transformers.LlamaForCausalLM
        config._attn_implementation = "sdpa"
        if recipe.decoder_spec.mlp.num_experts:
            config._experts_implementation = policy
            model_class = transformers.OlmoeForCausalLM
        with device:
            model: Any = model_class(config)
        model.train()
        if recompute_mode(recipe) != "none":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        call = torch.compile(model) if is_compiled(recipe) else model

        def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
            with torch.autocast(device.type, dtype=torch.bfloat16):
                output = call(input_ids=tokens, labels=targets, shift_labels=targets)
            loss: Tensor = output.loss
            return loss

        super().__init__(
            recipe,
            device,
            model=model,
            loss_of=loss_of,
            optimizer=torch.optim.AdamW(model.parameters(), fused=True, **adamw_kwargs(recipe)),
            clip=partial(nn.utils.clip_grad_norm_, foreach=True),
        )


def _config(recipe: Recipe) -> Any:
    shape = recipe.decoder_spec
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
        output_router_logits=True,  # adds the load-balancing loss
    )
