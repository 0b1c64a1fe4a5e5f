"""Pipelines with Megatron-DeepSpeed's names, trained and converted by DeepSpeed itself.

    python -m tests.components.convert.universal_cases FOLDER

writes ``FOLDER/NAME/universal`` and the float32 weights that DeepSpeed trained. DeepSpeed
numbers the layers of the pipeline. The forward pass has no attention: it only gives gradients.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.components.convert.base_section import Section
from tests.components.convert.conftest import PIECES, bloom, gpt2, gpt2_with_exact_gelu

# BigScience's fork transposes hidden states before and after the blocks, as two more layers.
TURNS = {"bloom": True, "gpt2": False, "gpt2_with_exact_gelu": False}
SECTIONS: dict[str, Callable[[], Section]] = {
    "bloom": bloom,
    "gpt2": gpt2,
    "gpt2_with_exact_gelu": gpt2_with_exact_gelu,
}
EMBEDDING = r"tied_modules.embed.word_embeddings.weight"
# The values of Megatron-DeepSpeed; CUTTING removes rows beyond those of the tokenizer.
INFORMATION = {
    "universal_checkpoint_version": 0.2,
    "parameter_with_row_parallelism_patterns": [
        r"\d+.mlp.dense_4h_to_h.weight",
        r"\d+.self_attention.dense.weight",
    ],
}
CUTTING = {
    "original_vocab_size": PIECES,
    "vocabulary_parameter_patterns": [EMBEDDING],
    "pipeline_replicated_parameter_patterns": [EMBEDDING],
}


class Embedding(nn.Module):
    def __init__(self, section: Section) -> None:
        super().__init__()
        rows, dim = section["padded_vocab_size"], section["dim"]
        self.word_embeddings = nn.Embedding(rows, dim)
        self.norms = section.get("embedding_norm") is not None
        if self.norms:
            self.word_embeddings.norm = nn.LayerNorm(dim)
        places = section["positions"].get("num_positions")
        self.position_embeddings = None if places is None else nn.Embedding(places, dim)

    @property
    def word_embeddings_weight(self) -> Tensor:
        return self.word_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.word_embeddings(tokens)
        if self.norms:
            hidden = self.word_embeddings.get_submodule("norm")(hidden)
        if self.position_embeddings is not None:
            hidden = hidden + self.position_embeddings(torch.arange(tokens.shape[1]))
        return hidden


class Block(nn.Module):
    def __init__(self, section: Section) -> None:
        super().__init__()
        dim, ffn_dim = section["dim"], section["mlp"]["ffn_dim"]
        self.input_layernorm = nn.LayerNorm(dim)
        self.self_attention = nn.ModuleDict({
            "query_key_value": nn.Linear(dim, 3 * dim),
            "dense": nn.Linear(dim, dim),
        })
        self.post_attention_layernorm = nn.LayerNorm(dim)
        self.mlp = nn.ModuleDict({
            "dense_h_to_4h": nn.Linear(dim, ffn_dim),
            "dense_4h_to_h": nn.Linear(ffn_dim, dim),
        })

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.self_attention["query_key_value"](self.input_layernorm(hidden))
        hidden = hidden + self.self_attention["dense"](mixed.unflatten(-1, (3, -1)).sum(-2))
        wide = self.mlp["dense_h_to_4h"](self.post_attention_layernorm(hidden))
        after: Tensor = hidden + self.mlp["dense_4h_to_h"](F.gelu(wide))
        return after


class Head(nn.Module):
    def __init__(self, section: Section) -> None:
        super().__init__()
        self.lm_head = nn.Linear(section["dim"], section["padded_vocab_size"], bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits


def pipeline(section: Section, *, turns: bool) -> Any:
    """Build the layers of GPTModelPipe in one stage."""
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    def tied(**forward: Any) -> Any:
        attribute = "word_embeddings_weight"
        return TiedLayerSpec("embed", Embedding, section, tied_weight_attr=attribute, **forward)

    is_tied = section["tied_embeddings"]
    turn = [lambda hidden: hidden.transpose(0, 1)] if turns else []
    parts = [
        lambda tokens: tokens,
        tied() if is_tied else LayerSpec(Embedding, section),
        *turn,
        *(LayerSpec(Block, section) for _ in range(section["num_layers"])),
        *turn,
        LayerSpec(nn.LayerNorm, section["dim"]),
        tied(forward_fn=_read_out) if is_tied else LayerSpec(Head, section),
    ]
    return PipelineModule(layers=parts, num_stages=1, loss_fn=_loss)


def _read_out(embedding: Embedding, hidden: Tensor) -> Tensor:
    return F.linear(hidden, embedding.word_embeddings_weight)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def train(module: Any, folder: Path, information: dict[str, Any]) -> None:
    """Take a step in bfloat16 with ZeRO 1, then save a checkpoint of DeepSpeed."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.AdamW(module.parameters(), lr=0.1),
        config={
            "train_batch_size": 2,
            "train_micro_batch_size_per_gpu": 2,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1, "reduce_bucket_size": 100_000},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    tokens = torch.arange(16).view(2, 8)
    engine.train_batch(iter([(tokens, tokens.flip(1))]))
    weights = {
        name: safe_get_full_fp32_param(parameter).clone()
        for name, parameter in module.named_parameters()
    }
    save_file(weights, folder / "trained.safetensors")
    state = {"iteration": 1, "universal_checkpoint_info": information}
    engine.save_checkpoint(str(folder), tag="step", client_state=state)


def convert(folder: Path) -> None:
    from deepspeed.checkpoint.ds_to_universal import main

    main(
        Namespace(
            input_folder=str(folder / "step"),
            output_folder=str(folder / "universal"),
            num_extract_workers=1,  # in this process
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=False,
        )
    )


def write_all(folder: Path) -> None:
    """Start DeepSpeed once for all pipelines, because that takes longer than a step."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}  # it would compile an operator
    store = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    deepspeed.init_distributed("gloo")  # uses the existing group
    for name, make in SECTIONS.items():
        (folder / name).mkdir()
        cutting = CUTTING if name == "bloom" else {}
        train(pipeline(make(), turns=TURNS[name]), folder / name, INFORMATION | cutting)
        convert(folder / name)
    dist.destroy_process_group()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
