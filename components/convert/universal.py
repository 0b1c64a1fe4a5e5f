"""Read a universal checkpoint of Megatron-DeepSpeed (https://arxiv.org/abs/2406.18820).

The folder has one file ``zero/NAME/fp32.pt`` per parameter, which is whole for any training
layout. Optimizer state and pickles in the folder are not read. A name starts with the module's
place in the pipeline, which differs between forks and options: BLOOM's blocks start at 3,
others at 2, so the places are read from the names. The folder has no ``config.json``: only
names and shapes are compared with the recipe.
"""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.convert import param_mapping
from components.convert.param_mapping import (
    ParamMapping,
    map_norm,
    map_vocabulary,
    map_weight,
    with_prefix,
)
from components.data.files import check_regular
from components.errors import RecipeError

REMEDY = "set the model section to match the trained model, or use another folder"
_PATH = "model.init_from"
PARTS, _FILE, _KEY = "zero", "fp32.pt", "param"  # the first identifies such a folder


class UniversalReader:
    """Lazy reader of a universal checkpoint's parameters by name, with memory mapping."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / PARTS

    def list_tensors(self) -> list[str]:
        return sorted(file.parent.name for file in self._folder.glob(f"*/{_FILE}"))

    def read_tensor(self, name: str) -> Tensor:
        """Return a parameter's float32 values, loaded as weights, or raise a RecipeError."""
        file = self._folder / name / _FILE
        check_regular(file, str(file))
        try:
            # torch's older format, which is not a zip file, cannot be mapped.
            mapped = zipfile.is_zipfile(file)
            loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:  # torch raises many types if the file is not a pickle
            # torch's message would recommend unsafe unpickling.
            reason = getattr(error, "strerror", None) or "it is damaged or contains code"
            remedy = "convert the checkpoint again (files are loaded as weights only)"
            raise RecipeError(str(file), f"cannot be read: {reason}", remedy) from error
        tensor = loaded.get(_KEY) if isinstance(loaded, dict) else None
        if not isinstance(tensor, Tensor):
            # Without tensor parallelism, ZeRO 3 is converted to flat vectors without shapes.
            remedy = "convert a checkpoint of ZeRO stage 0 to 2, as pipelines write"
            raise RecipeError(str(file), f"has no tensor under {_KEY!r}", remedy)
        return param_mapping.check_values(tensor, str(file))

    def read_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.read_tensor(name).shape)


def map_universal(
    folder: Path, features: DecoderSpec, names: Sequence[str]
) -> list[ParamMapping]:
    """Map each parameter to one of the folder's; raise a RecipeError on differences."""
    _check_parts(folder, features)
    blocks = sorted(int(place) for place in _places(names, r"\.input_layernorm\.weight"))
    if not blocks:
        lacks = "blocks of a Megatron-DeepSpeed pipeline (N.input_layernorm.weight)"
        content = f"it has {param_mapping.name_some(names) or 'no tensors'}"
        problem = f"{folder} is a universal checkpoint without {lacks}; {content}"
        remedy = "use a converted checkpoint of such a pipeline, or a Hugging Face folder"
        raise RecipeError(_PATH, problem, remedy)
    if len(blocks) != features.num_layers:
        problem = f"{folder} has {len(blocks)} blocks, the recipe has {features.num_layers}"
        raise RecipeError(_PATH, problem, f"set model.num_layers={len(blocks)}")
    # If the norm or the head is missing, the message contains its expected place.
    final_norm = next(iter(_places(names, r"\.weight")), str(blocks[-1] + 1))
    head = next(iter(_places(names, r"\.lm_head\.weight")), str(int(final_norm) + 1))
    words = f"{_embedding(names)}.word_embeddings"
    rows = [map_vocabulary("embedding.weight", f"{words}.weight")]
    if features.embedding_norm is not None:
        rows += map_norm("embedding_norm", f"{words}.norm")
    if features.positions.class_name == "Learned":
        rows.append(
            map_weight("positions.weight", f"{_embedding(names)}.position_embeddings.weight")
        )
    for layer in range(features.num_layers):
        place = f"{blocks[0] + layer}."
        rows += with_prefix(f"layers.{layer}.", place, param_mapping.MEGATRON_LAYER)
    rows += map_norm("final_norm", final_norm)
    if not features.tied_embeddings:
        rows.append(map_vocabulary("head.weight", f"{head}.lm_head.weight"))
    mappings = list(param_mapping.map_weights(tuple(rows), features))
    wanted = {name for mapping in mappings for name in mapping.theirs}
    missing, unknown = sorted(wanted.difference(names)), sorted(set(names) - wanted)
    if differences := param_mapping.name_differences(missing, unknown):
        raise RecipeError(_PATH, f"{folder} differs: {differences}", REMEDY)
    return mappings


def _places(names: Sequence[str], rest: str) -> list[str]:
    """Return the pipeline places, as digits, of the names that end in the pattern ``rest``."""
    matches = (re.fullmatch(rf"(\d+){rest}", name) for name in names)
    return [match[1] for match in matches if match]


def _embedding(names: Sequence[str]) -> str:
    """Return the embedding's place: a number, or ``tied_modules.embed`` if tied to the head."""
    return next(iter(_places(names, r"\.word_embeddings\.weight")), "tied_modules.embed")


def count_rows(
    folder: Path, features: DecoderSpec, reader: UniversalReader, tokenizer_vocab_size: int
) -> int:
    """Return the number of vocabulary rows, with or without padding; refuse any other."""
    rows = reader.read_shape(f"{_embedding(reader.list_tensors())}.word_embeddings.weight")[0]
    accepted = sorted({tokenizer_vocab_size, features.vocab_size, features.padded_vocab_size})
    if rows not in accepted:
        wanted = " or ".join(f"{count:,}" for count in accepted)
        problem = f"{folder} has {rows:,} vocabulary rows, the recipe has {wanted}"
        padded = f"set model.padded_vocab_size={rows} if rows were added for training"
        fresh = f"set model.vocab_size={rows} and use the tokenizer of that run"
        raise RecipeError(_PATH, problem, f"{padded}, or {fresh}")
    return rows


def _check_parts(folder: Path, features: DecoderSpec) -> None:
    norm, attention, mlp = features.norm, features.attention, features.mlp
    requirements = {
        "positions": features.positions.class_name in {"Alibi", "Learned"},
        "norm": norm.norm_label == "LayerNorm with weight and bias",
        "norm_placement": features.norm_placement == "before",
        "embedding_norm": features.embedding_norm in {None, norm},
        "embedding_scale": features.embedding_scale == "none",
        "parametrization": features.is_unscaled,
        "pattern": features.pattern is None,
        "mlp": mlp.is_plain and mlp.bias,
        "attention.bias": attention.bias,
        "attention.num_kv_heads": attention.num_kv_heads == attention.num_heads,
        "attention.qk_norm": attention.qk_norm is None,
        "attention.scale_dim": attention.scale_dim is None,
        "attention.output_gate": not attention.output_gate,
        "attention.sinks": not attention.sinks,
    }
    if lacking := [f"model.{key}" for key, is_met in requirements.items() if not is_met]:
        raise RecipeError(
            _PATH,
            f"{folder} is a universal checkpoint: it needs a model with ALiBi or learned "
            f"positions, LayerNorm before each branch and a plain MLP, all with biases, and as "
            f"many key heads as query heads; the recipe differs in {', '.join(lacking)}",
            "convert the weights to a Hugging Face folder first",
        )
