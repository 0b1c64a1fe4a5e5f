"""Fill classes of transformers with a pipeline's weights, by independent names and orders."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

from tests.components.convert.base_section import Section
from tests.components.convert.conftest import PIECES
from tests.components.convert.universal_cases import TURNS

FIRST_BLOCK = {"bloom": 3, "gpt2": 2, "gpt2_with_exact_gelu": 2}
GPT2_NAMES = {
    "input_layernorm": "ln_1",
    "self_attention.query_key_value": "attn.c_attn",
    "self_attention.dense": "attn.c_proj",
    "post_attention_layernorm": "ln_2",
    "mlp.dense_h_to_4h": "mlp.c_fc",
    "mlp.dense_4h_to_h": "mlp.c_proj",
}


def reference(name: str, section: Section, trained: dict[str, Tensor]) -> Any:
    """Fill the class of ``transformers``; the converter has cut Bloom's embedding rows."""
    is_bloom = name == "bloom"
    rows = PIECES if is_bloom else section["padded_vocab_size"]
    model: Any = (reference_bloom if is_bloom else reference_gpt2)(section, rows)
    named = dict(model.transformer.named_parameters())
    if not section["tied_embeddings"]:
        named["lm_head.weight"] = model.lm_head.weight
    with torch.no_grad():
        for key, value in trained.items():
            theirs = inner_name(key, name, section["num_layers"])
            found = named.pop(bloom_key(theirs) if is_bloom else gpt2_key(theirs))
            found.copy_(value[: len(found)] if is_bloom else gpt2_value(key, value, section))
    assert not named
    return model.eval()


def inner_name(key: str, name: str, num_layers: int) -> str:
    """Number the blocks from 0 and name the last norm."""
    place, _, rest = key.removeprefix("tied_modules.").partition(".")
    if rest.startswith(("word_embeddings", "position_embeddings", "lm_head")):
        return rest
    first = FIRST_BLOCK[name]
    if int(place) == first + num_layers + TURNS[name]:
        return f"ln_f.{rest}"
    return f"h.{int(place) - first}.{rest}"


def bloom_key(key: str) -> str:
    return key.replace("word_embeddings.norm", "word_embeddings_layernorm")


def reference_bloom(section: Section, rows: int) -> nn.Module:
    return BloomForCausalLM(
        BloomConfig(
            vocab_size=rows,
            hidden_size=section["dim"],
            n_layer=section["num_layers"],
            n_head=section["attention"]["num_heads"],
        )
    )


def reference_gpt2(section: Section, rows: int) -> nn.Module:
    activation = {"gelu": "gelu", "gelu_tanh": "gelu_new"}[section["mlp"]["activation"]]
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=rows,
            n_positions=section["positions"]["num_positions"],
            n_embd=section["dim"],
            n_inner=section["mlp"]["ffn_dim"],
            n_layer=section["num_layers"],
            n_head=section["attention"]["num_heads"],
            activation_function=activation,
            tie_word_embeddings=section["tied_embeddings"],
        )
    )


def gpt2_key(key: str) -> str:
    for old, new in GPT2_NAMES.items():
        key = key.replace(f".{old}.", f".{new}.")
    return key.replace("word_embeddings", "wte").replace("position_embeddings", "wpe")


def gpt2_value(key: str, value: Tensor, section: Section) -> Tensor:
    """Group queries, keys and values; GPT-2 stores weights transposed."""
    if "query_key_value" in key:
        heads = value.split(
            section["attention"]["head_dim"]
        )  # q, k, v of the first head, of the second
        value = torch.cat([part for kind in range(3) for part in heads[kind::3]])
    is_map = key.endswith(".weight") and ("self_attention" in key or "mlp" in key)
    return value.T if is_map else value
