"""Our parameters under the names and in the shapes of the `transformers` classes.

Each mapping is linear, so it maps gradients as well as weights. Missing entries are fine,
because a model may have no norm weights, biases or separate head.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

State = Mapping[str, Tensor]
Fuse = Callable[[Tensor, Tensor, Tensor], Tensor]

# Parts of a name, replaced in this order; OLMo and OLMoE have the names of Llama.
LLAMA = {
    "embedding.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "attention_norm.": "input_layernorm.",
    "mlp_norm.": "post_attention_layernorm.",
    "attention.query.": "self_attn.q_proj.",
    "attention.key.": "self_attn.k_proj.",
    "attention.value.": "self_attn.v_proj.",
    "attention.output.": "self_attn.o_proj.",
    "attention.query_norm.": "self_attn.q_norm.",
    "attention.key_norm.": "self_attn.k_norm.",
    "mlp.gate.": "mlp.gate_proj.",
    "mlp.up.": "mlp.up_proj.",
    "mlp.down.": "mlp.down_proj.",
    "final_norm.": "model.norm.",
    "head.": "lm_head.",
}
BLOOM = {
    "embedding.": "transformer.word_embeddings.",
    "embedding_norm.": "transformer.word_embeddings_layernorm.",
    "layers.": "transformer.h.",
    "attention_norm.": "input_layernorm.",
    "mlp_norm.": "post_attention_layernorm.",
    "attention.fused.": "self_attention.query_key_value.",
    "attention.output.": "self_attention.dense.",
    "mlp.up.": "mlp.dense_h_to_4h.",
    "mlp.down.": "mlp.dense_4h_to_h.",
    "final_norm.": "transformer.ln_f.",
    "head.": "lm_head.",
}
GPT2 = {
    "embedding.": "transformer.wte.",
    "positions.": "transformer.wpe.",
    "layers.": "transformer.h.",
    "attention_norm.": "ln_1.",
    "mlp_norm.": "ln_2.",
    "attention.fused.": "attn.c_attn.",
    "attention.output.": "attn.c_proj.",
    "mlp.up.": "mlp.c_fc.",
    "mlp.down.": "mlp.c_proj.",
    "final_norm.": "transformer.ln_f.",
    "head.": "lm_head.",
}


def to_llama(state: State) -> dict[str, Tensor]:
    """Rename for `LlamaForCausalLM`, `OlmoForCausalLM` and attention of `OlmoeForCausalLM`."""
    return {renamed(name, LLAMA): value for name, value in state.items()}


def to_bloom(state: State, *, num_heads: int) -> dict[str, Tensor]:
    """Fuse query, key and value head by head: (head 0: q, k, v), (head 1: q, k, v), ..."""

    def interleaved(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        by_head = [part.unflatten(0, (num_heads, -1)) for part in (query, key, value)]
        return torch.stack(by_head, dim=1).flatten(0, 2)  # (heads, 3, head_dim, ...) before

    fused = _with_fused(state, interleaved)
    return {renamed(name, BLOOM): value for name, value in fused.items()}


def to_gpt2(state: State) -> dict[str, Tensor]:
    """Concatenate query, key and value; maps of GPT-2 are (input, output)."""

    def stacked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.cat((query, key, value))

    def turned(name: str, value: Tensor) -> Tensor:
        is_map = name.startswith("layers.") and value.dim() == 2
        return value.T.contiguous() if is_map else value

    fused = _with_fused(state, stacked)
    return {renamed(name, GPT2): turned(name, value) for name, value in fused.items()}


def renamed(name: str, table: Mapping[str, str]) -> str:
    """Replace the parts of a name by the entries of a table."""
    for ours, theirs in table.items():
        if name.startswith(ours) or f".{ours}" in name:
            name = name.replace(ours, theirs, 1)
    return name


def _with_fused(state: State, fuse: Fuse) -> dict[str, Tensor]:
    fused = {}
    for name, value in state.items():
        if ".attention.query." in name:
            key, values = (name.replace(".query.", f".{part}.") for part in ("key", "value"))
            fused[name.replace(".query.", ".fused.")] = fuse(value, state[key], state[values])
        elif ".attention.key." not in name and ".attention.value." not in name:
            fused[name] = value
    return fused
