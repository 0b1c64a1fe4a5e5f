"""Weights of Megatron-DeepSpeed, from a universal checkpoint (https://arxiv.org/abs/2406.18820).

Such a folder holds one file ``zero/NAME/fp32.pt`` a parameter, whole whatever the layout that
trained it, beside optimizer state and pickles that are left alone. A name begins with the place
of its module in the pipeline, where forks and options differ: BLOOM's blocks begin at 3, others
at 2, so the places are read from the names. The folder has no ``config.json``: names and shapes
are compared with the recipe, but not what leaves no trace in them.
"""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.convert import param_mapping
from components.convert.param_mapping import ParamMapping, norm, vocabulary, weight, with_prefix
from components.data.files import check_regular
from components.errors import RecipeError

REMEDY = "set the model section to what was trained, or name another folder"
_PATH = "model.init_from"
PARTS, _FILE, _KEY = "zero", "fp32.pt", "param"  # by the first is such a folder known


class UniversalReader:
    """Parameters of a universal checkpoint by name, each mapped when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / PARTS

    def names(self) -> list[str]:
        return sorted(file.parent.name for file in self._folder.glob(f"*/{_FILE}"))

    def read(self, name: str) -> Tensor:
        """Map a parameter's float32 values, unpickling nothing else, or raise a RecipeError."""
        file = self._folder / name / _FILE
        check_regular(file, str(file))
        try:
            # Only torch's older format, which is no zip file, cannot be mapped.
            mapped = zipfile.is_zipfile(file)
            held = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:  # torch raises almost anything where the file is no pickle
            # Torch's own text would advise to unpickle the file without its guard.
            reason = getattr(error, "strerror", None) or "it is damaged or holds code"
            remedy = "convert the checkpoint again; files are read as weights only"
            raise RecipeError(str(file), f"cannot be read: {reason}", remedy) from error
        tensor = held.get(_KEY) if isinstance(held, dict) else None
        if not isinstance(tensor, Tensor):
            # Without tensor parallelism ZeRO 3 is converted to vectors that lost their shapes.
            remedy = "convert a checkpoint of ZeRO 0 to 2, as those of pipelines are"
            raise RecipeError(str(file), f"holds no tensor under {_KEY!r}", remedy)
        return param_mapping.check_values(tensor, str(file))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.read(name).shape)


def map_universal(
    folder: Path, features: DecoderSpec, names: Sequence[str]
) -> list[ParamMapping]:
    """Join each parameter to one of the folder's, or raise a RecipeError of what differs."""
    _check_parts(folder, features)
    blocks = sorted(int(place) for place in _places(names, r"\.input_layernorm\.weight"))
    if not blocks:
        lacks = "blocks of a Megatron-DeepSpeed pipeline, N.input_layernorm.weight"
        held = f"it holds {param_mapping.name_some(names) or 'nothing'}"
        problem = f"{folder} is a universal checkpoint without {lacks}; {held}"
        remedy = "name one that such a pipeline was converted to, or a Hugging Face folder"
        raise RecipeError(_PATH, problem, remedy)
    if len(blocks) != features.num_layers:
        problem = f"{folder} has {len(blocks)} blocks, the recipe {features.num_layers}"
        raise RecipeError(_PATH, problem, f"set model.num_layers={len(blocks)}")
    # Where the norm or the head is missing, a message names the place that it could have.
    final_norm = next(iter(_places(names, r"\.weight")), str(blocks[-1] + 1))
    head = next(iter(_places(names, r"\.lm_head\.weight")), str(int(final_norm) + 1))
    words = f"{_embedding(names)}.word_embeddings"
    rows = [vocabulary("embedding.weight", f"{words}.weight")]
    if features.embedding_norm is not None:
        rows += norm("embedding_norm", f"{words}.norm")
    if features.positions.kind == "Learned":
        rows.append(
            weight("positions.weight", f"{_embedding(names)}.position_embeddings.weight")
        )
    for layer in range(features.num_layers):
        place = f"{blocks[0] + layer}."
        rows += with_prefix(f"layers.{layer}.", place, param_mapping.MEGATRON_LAYER)
    rows += norm("final_norm", final_norm)
    if not features.tied_embeddings:
        rows.append(vocabulary("head.weight", f"{head}.lm_head.weight"))
    mappings = list(param_mapping.map_weights(tuple(rows), features))
    wanted = {name for mapping in mappings for name in mapping.theirs}
    missing, unknown = sorted(wanted.difference(names)), sorted(set(names) - wanted)
    if said := param_mapping.name_differences(missing, unknown):
        raise RecipeError(_PATH, f"{folder} differs: {said}", REMEDY)
    return mappings


def _places(names: Sequence[str], rest: str) -> list[str]:
    """List the places in the pipeline, numbers, that stand before such a name."""
    found = (re.fullmatch(rf"(\d+){rest}", name) for name in names)
    return [match[1] for match in found if match]


def _embedding(names: Sequence[str]) -> str:
    """Return the embedding's place; tied, it stands in both ends and beside the numbers."""
    return next(iter(_places(names, r"\.word_embeddings\.weight")), "tied_modules.embed")


def count_rows(
    folder: Path, features: DecoderSpec, reader: UniversalReader, tokenizer_vocab_size: int
) -> int:
    """Count vocabulary rows, maybe without padding; a RecipeError if the recipe has others."""
    rows = reader.shape(f"{_embedding(reader.names())}.word_embeddings.weight")[0]
    own = sorted({tokenizer_vocab_size, features.vocab_size, features.padded_vocab_size})
    if rows not in own:
        wanted = " or ".join(f"{count:,}" for count in own)
        problem = f"{folder} has {rows:,} vocabulary rows, the recipe {wanted}"
        padded = f"set model.padded_vocab_size={rows} if rows were added for training"
        fresh = f"model.vocab_size={rows}, with the tokenizer of that run"
        raise RecipeError(_PATH, problem, f"{padded}, or {fresh}")
    return rows


def _check_parts(folder: Path, features: DecoderSpec) -> None:
    norm, attention, mlp = features.norm, features.attention, features.mlp
    has = {
        "positions": features.positions.kind in {"Alibi", "Learned"},
        "norm": norm.description == "LayerNorm with weight and bias",
        "norm_placement": features.norm_placement == "before",
        "embedding_norm": features.embedding_norm in {None, norm},
        "embedding_scale": features.embedding_scale == "none",
        "parametrization": features.is_unscaled,
        "mlp": mlp.is_plain and mlp.bias,
        "attention.bias": attention.bias,
        "attention.num_kv_heads": attention.num_kv_heads == attention.num_heads,
        "attention.qk_norm": attention.qk_norm is None,
        "attention.scale_dim": attention.scale_dim is None,
    }
    if lacking := [f"model.{key}" for key, is_met in has.items() if not is_met]:
        raise RecipeError(
            _PATH,
            f"{folder} is a universal checkpoint, read for models with ALiBi or learned "
            f"positions, LayerNorm before each branch and a plain MLP, all with biases, and as "
            f"many heads of keys as of queries; the recipe has others: {', '.join(lacking)}",
            "convert the weights to a Hugging Face folder first",
        )
