"""A small model section of each family, with awkward shapes, and their tokenizers."""

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
import yaml
from torch import nn

from components.build import build_node
from components.convert.folder import write_folder
from components.data.byte_bpe import ByteBPE
from components.data.unigram import Unigram
from tests.components.convert.base_section import (
    LAYER_NORM,
    PLAIN_MLP,
    RMS,
    ROTARY,
    YARN,
    Section,
    base_section,
    experts,
    latent_attention,
    norm_node,
    part,
    scale_rotation,
)
from tests.components.convert.hybrid_section import HYBRIDS, SIGMOID

ROOT = Path(__file__).resolve().parents[3]
PIECES = 300
CONTEXT_TOKENS = 24

Export = Callable[..., Path]
Trained = tuple[Path, Section]

PUBLISHED = Path(__file__).resolve().parents[2] / "data" / "hugging_face"


def published(name: str) -> dict[str, Any]:
    """Read a ``config.json`` of the hub, listed in `tests/data/hugging_face/README.md`."""
    config: dict[str, Any] = json.loads((PUBLISHED / f"{name}.json").read_text("utf-8"))
    return config


def llama() -> Section:
    """Grouped heads, wider than the model together, and padded rows."""
    grouped = {"num_kv_heads": 2, "head_dim": 10}
    return base_section(ROTARY, RMS, attention=grouped)


def llama_with_biases() -> Section:
    section = llama() | {"tied_embeddings": False}
    section["attention"]["bias"] = section["mlp"]["bias"] = True
    section["mlp"]["activation"] = "gelu_tanh"
    return section


def bloom() -> Section:
    """Seven heads: ALiBi has other slopes if their number is not a power of two."""
    heads = {"num_heads": 7, "num_kv_heads": 7, "head_dim": 6, "bias": True}
    wide = PLAIN_MLP | {"ffn_dim": 4 * 42}
    section = base_section(part("positions.Alibi"), LAYER_NORM, mlp=wide, attention=heads)
    return section | {"dim": 42, "embedding_norm": LAYER_NORM}


def gpt2() -> Section:
    learned = part("positions.Learned", num_positions=29)
    return base_section(learned, LAYER_NORM, mlp=PLAIN_MLP, attention={"bias": True})


def gpt2_with_exact_gelu() -> Section:
    section = gpt2() | {"tied_embeddings": False}
    section["mlp"] = section["mlp"] | {"activation": "gelu"}
    return section


def olmo() -> Section:
    bare = norm_node(center=True, weight=False, bias=False)
    grouped = {"num_kv_heads": 3}
    section = base_section(ROTARY, bare, attention=grouped)
    return section | {"tied_embeddings": False}


def olmoe() -> Section:
    section = base_section(ROTARY, RMS, attention={"num_kv_heads": 3, "qk_norm": RMS})
    return section | {"mlp": experts(), "tied_embeddings": False}


def olmo2() -> Section:
    """Norms after attention and MLP, and over all queries and all keys."""
    whole = {"num_kv_heads": 3, "qk_norm": RMS}
    section = base_section(ROTARY, RMS, attention=whole)
    return section | {"tied_embeddings": False, "norm_placement": "after"}


def qwen3() -> Section:
    """Grouped heads that are wider than the model together, each normalized by itself."""
    heads = {"num_kv_heads": 2, "head_dim": 10, "qk_norm": RMS, "qk_norm_over": "each_head"}
    return base_section(ROTARY, RMS, attention=heads)


def qwen3_moe() -> Section:
    """The same with experts; the routing weights of a token sum to 1."""
    return qwen3() | {"mlp": experts(renormalize=True)}


def deepseek_v3() -> Section:
    """A dense layer, then two with experts in three groups; heads of three widths."""
    section = base_section(ROTARY, RMS)
    section |= {"attention": latent_attention(), "dense_mlp": section["mlp"]}
    mlp = experts(num_experts=6, renormalize=True, **SIGMOID, weight_scale=2.5)
    return section | {"num_layers": 3, "tied_embeddings": False, "mlp": mlp}


def deepseek_v3_of_experts_alone() -> Section:
    """Queries come from the hidden states, and no layer is dense."""
    section = deepseek_v3() | {"dense_mlp": None}
    return section | {"attention": section["attention"] | {"query_rank": None}}


def gpt_oss() -> Section:
    """Experts with biases and a clamped SwiGLU, sinks, and windows in every second layer."""
    heads = {"num_kv_heads": 2, "head_dim": 10, "bias": True, "sinks": True}
    section = base_section(ROTARY, RMS, attention=heads)
    section["attention"] |= {"windows": [5, "full"]}
    clamped = {"bias": True, "renormalize": True, "swiglu_alpha": 1.7, "swiglu_limit": 0.5}
    section |= {"mlp": experts(**clamped, linear_offset=1.0)}
    section |= {"tied_embeddings": False, "num_layers": 3}
    return scale_rotation(section, "YarnScaling", **YARN, truncate=False)


def smollm3() -> Section:
    """The second and the fourth of five layers do not rotate."""
    positions = part("positions.InterleavedRotary", base=500.0, skip_every=2)
    return base_section(positions, RMS, attention={"num_kv_heads": 2}) | {"num_layers": 5}


def apertus() -> Section:
    """Two maps and xIELU, and each head normalized by itself; rotation is not slowed."""
    heads = {"num_kv_heads": 3, "qk_norm": RMS, "qk_norm_over": "each_head"}
    plain = {"activation": "xielu", "gated": False}
    section = base_section(ROTARY, RMS, mlp=plain, attention=heads)
    return section | {"tied_embeddings": False}


def olmo3() -> Section:
    """The third of four layers sees all keys, the others see five."""
    section = scale_rotation(olmo2(), "YarnScaling", **YARN)
    section["positions"] |= {"local_base": ROTARY["base"]}
    section["attention"] |= {"windows": [5, 5, "full"]}
    return section | {"num_layers": 4}


def mistral() -> Section:
    section = llama()
    section["attention"] |= {"windows": [5]}
    return section


def gemma3() -> Section:
    """Norms on both sides, scaled embeddings; the second and fourth of five layers see all."""
    heads = {"num_kv_heads": 2, "head_dim": 10, "qk_norm": RMS, "qk_norm_over": "each_head"}
    heads |= {"windows": [5, "full"], "scale_dim": 14}
    gelu = {"activation": "gelu_tanh"}
    local = {"local_base": 100.0}
    section = base_section(ROTARY | local, RMS, mlp=gelu, attention=heads)
    section |= {"norm_placement": "both", "embedding_scale": "sqrt_dim"}
    return section | {"num_layers": 5}


def gemma3_slowed() -> Section:
    """Scores as wide as the heads; layers in an order without an interval."""
    section = scale_rotation(gemma3(), "LinearScaling")
    section["attention"] |= {"windows": [5, "full", "full"], "scale_dim": None}
    return section | {"tied_embeddings": False}


def nanochat() -> Section:
    """Norms without weights; grouped heads, two maps, capped logits."""
    bare = norm_node(center=False, weight=False, bias=False)
    heads = {"num_kv_heads": 3, "qk_norm": bare, "qk_norm_over": "each_head"}
    plain = {"activation": "relu_squared", "gated": False}
    section = base_section(ROTARY, bare, mlp=plain, attention=heads)
    return section | {"embedding_norm": bare, "logit_cap": 3.0, "tied_embeddings": False}


def nanochat_with_biases() -> Section:
    """Slowed, tied, without a cap."""
    section = scale_rotation(nanochat(), "LinearScaling") | {"logit_cap": None}
    section["attention"]["bias"] = section["tied_embeddings"] = True
    return section


SECTIONS: dict[str, Callable[[], Section]] = {
    make.__name__: make
    for make in (
        *(llama, llama_with_biases, bloom, gpt2, gpt2_with_exact_gelu, olmo),
        *(olmoe, olmo2, qwen3, qwen3_moe, smollm3, apertus),
        *(deepseek_v3, deepseek_v3_of_experts_alone, olmo3, mistral),
        *HYBRIDS,
        gpt_oss,
        *(gemma3, gemma3_slowed, nanochat, nanochat_with_biases),
    )
}
# The fastest of five pairs stays, and the next ones are interpolated.
LLAMA3 = {"low_frequency_factor": 0.125, "high_frequency_factor": 2.0, "original_tokens": 12}
SECTIONS |= {
    "olmoe_renormalized": lambda: olmoe() | {"mlp": experts(renormalize=True)},
    "llama_slowed": lambda: scale_rotation(llama(), "LinearScaling"),
    "llama_slowed_as_llama3": lambda: scale_rotation(llama(), "Llama3Scaling", **LLAMA3),
    "qwen3_slowed": lambda: scale_rotation(qwen3(), "YarnScaling", **YARN),
    "smollm3_slowed": lambda: scale_rotation(smollm3(), "YarnScaling", **YARN),
    "apertus_slowed": lambda: scale_rotation(apertus(), "Llama3Scaling", **LLAMA3),
}


def random_model(section: Mapping[str, Any], *, seed: int = 1) -> nn.Module:
    """Draw every parameter, also norms and biases, so that a swapped one is detected."""
    model: nn.Module = build_node(section, "model")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(mean + 0.2 * torch.randn(parameter.shape, generator=generator))
            if mean:  # a class that adds 1 loses no bit of values from 1/2
                parameter.clamp_(min=0.5)
        for buffer in model.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model.eval()


@pytest.fixture(params=SECTIONS)
def section(request: pytest.FixtureRequest) -> Section:
    return SECTIONS[request.param]()


def corpus() -> list[str]:
    return [file.read_text("utf-8") for file in sorted((ROOT / "corpora/eu24").glob("*.txt"))]


def unigram_section(pieces: int) -> Section:
    """The published options, with few placeholders and threads for a small vocabulary."""
    file = ROOT / "conf/tokenizer/unigram_eu24.yaml"
    settings: Section = yaml.safe_load(file.read_text("utf-8"))
    settings |= {"vocab_size": pieces, "num_threads": 1}
    settings["special_pieces"]["num_placeholders"] = 4
    return settings


def without_target(section: Section) -> Section:
    return {key: value for key, value in section.items() if key != "_target_"}


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, section = tmp_path_factory.mktemp("unigram"), unigram_section(1_200)
    Unigram(**without_target(section)).train_on_texts(corpus(), folder)
    return folder, section


@pytest.fixture(scope="session")
def byte_bpe(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    file = ROOT / "conf/tokenizer/bpe_bloom.yaml"
    section = yaml.safe_load(file.read_text("utf-8")) | {"vocab_size": PIECES}
    folder = tmp_path_factory.mktemp("byte_bpe")
    ByteBPE(**without_target(section)).train_on_texts(corpus()[:2], folder)
    return folder, section


def export_to(
    target: Path, byte_bpe: Trained, model: nn.Module, section: Section, **changes: Any
) -> Path:
    """Write a model as a folder, with default options."""
    options: dict[str, Any] = {"tokenizer": byte_bpe[0], "tokenizer_section": byte_bpe[1]}
    options |= {"context_tokens": CONTEXT_TOKENS, "rows": "published", "card": "# card\n"}
    write_folder(target, model=model, section=section, **(options | changes))
    return target


@pytest.fixture
def export(tmp_path: Path, byte_bpe: Trained) -> Export:
    return partial(export_to, tmp_path / "exported", byte_bpe)
