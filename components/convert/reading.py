"""Read weights: of a published folder one tensor at a time, and of a checkpoint."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load

from components.build import build
from components.checkpoint.metadata import Marker
from components.checkpoint.reading import PieceReader, read_pieces
from components.checkpoint.state import WEIGHTS
from components.convert.family import HFFamily, choose_family
from components.convert.features import Features, read_features
from components.convert.hf_shards import ShardReader
from components.convert.links import TensorLink
from components.convert.tokenizer import count_pieces
from components.convert.universal import (
    REMEDY,
    UniversalReader,
    count_rows,
    is_universal,
    link_universal,
    name_some,
)
from components.errors import RecipeError
from components.json_file import read_mapping


def load_weights(checkpoint: Path, marker: Marker, section: Mapping[str, Any]) -> nn.Module:
    """Build the recipe's model on the CPU and fill it, whatever layout wrote the checkpoint."""
    with torch.device("meta"):
        model: nn.Module = build(section, "model")
    model = model.to_empty(device="cpu")
    tensors = {f"{WEIGHTS}{name}": value for name, value in model.state_dict().items()}
    reader = PieceReader(checkpoint, read_pieces(checkpoint, marker.files))
    with warnings.catch_warnings():
        alone = "torch.distributed is disabled"
        warnings.filterwarnings("ignore", message=alone)  # meant: an export is one process
        load(tensors, storage_reader=reader, no_dist=True)
    return model


NO_FOLDER = "name a folder as save_pretrained or action=export writes it"


@dataclass(frozen=True, kw_only=True)
class _Source:
    """An open folder whose every tensor has its partner; ``found`` gives their names in it."""

    reader: ShardReader | UniversalReader
    links: Sequence[TensorLink]
    found: Mapping[str, str]
    rows: int
    remedy: str  # where a shape is another


def read_folder(
    folder: Path, model: nn.Module, *, section: Mapping[str, Any], tokenizer_vocab_size: int
) -> None:
    """Fill ``model`` with the weights of ``folder``, in the precision that it has.

    The folder is one of Hugging Face's, or a universal checkpoint of Megatron-DeepSpeed. Call
    it before anything wraps the model. A pipeline stage takes what it holds. Rows that the
    folder lacks because they were only added for training become zero: their logits are then
    0, whatever the token, and the first steps push them down as in a run from scratch.

    Raises:
        RecipeError: the folder holds another kind or size of model, another vocabulary,
            missing or unknown tensors, or tensors of another shape.
    """
    features = read_features(section)
    if is_universal(folder):
        _pour(model, _open_universal(folder, features, tokenizer_vocab_size))
        return
    family = choose_family(features)
    config = read_mapping(folder / "config.json", remedy=NO_FOLDER)
    _check_config(folder, config, family, features)
    _check_vocabulary(folder, features, config.get("vocab_size"), tokenizer_vocab_size)
    links = list(family.links(features))
    with ShardReader(folder) as reader:
        found = _match_names(folder, reader.names(), family, links)
        remedy = "the folder contradicts its own config.json; fetch it again"
        rows = config["vocab_size"]
        _pour(model, _Source(reader=reader, links=links, found=found, rows=rows, remedy=remedy))


def _open_universal(folder: Path, features: Features, tokenizer_vocab_size: int) -> _Source:
    reader = UniversalReader(folder)
    links = link_universal(folder, features, reader.names())
    rows = count_rows(folder, features, reader, tokenizer_vocab_size=tokenizer_vocab_size)
    found = {name: name for link in links for name in link.theirs}
    return _Source(reader=reader, links=links, found=found, rows=rows, remedy=REMEDY)


def _pour(model: nn.Module, source: _Source) -> None:
    parameters = dict(model.named_parameters())
    unlinked = set(parameters) - {name for link in source.links for name in link.ours}
    assert not unlinked, f"the weights have no place for {sorted(unlinked)}"
    held = [link for link in source.links if all(name in parameters for name in link.ours)]
    with torch.no_grad():
        for fill in (_check_shapes, _fill):  # all shapes before the first copy
            for link in held:
                fill(link, [parameters[name] for name in link.ours], source)


def _check_config(
    folder: Path, config: Mapping[str, Any], family: HFFamily, features: Features
) -> None:
    """Compare what is computed, key by key, and name every difference."""
    ours, kind = family.shape(features), config.get("model_type")
    if kind != family.model_type:
        raise RecipeError(
            str(folder / "config.json"),
            f"model_type is {kind!r}, the recipe's model is of type {family.model_type!r}",
            "choose the model of the recipe that these weights belong to",
        )
    theirs = family.stated(config)
    different = [
        f"{key}: {theirs[key]} there, {ours[key]} in the recipe"
        for key in ours
        if theirs[key] != ours[key]
    ]
    if different:
        raise RecipeError(
            str(folder / "config.json"),
            "this is another model\n  " + "\n  ".join(different),
            "set the model section to the folder's values, or name another folder",
        )


def _check_vocabulary(
    folder: Path, features: Features, rows: object, tokenizer_vocab_size: int
) -> None:
    own = sorted({features.vocab_size, features.padded_vocab_size})
    if rows not in own:
        wanted = " or ".join(f"{count:,}" for count in own)
        raise RecipeError(
            "model.vocab_size",
            f"{folder} has {rows} vocabulary rows, the recipe {wanted}",
            f"set model.vocab_size={rows}, with the tokenizer of that folder",
        )
    pieces = count_pieces(folder)
    if pieces is not None and pieces != tokenizer_vocab_size:
        raise RecipeError(
            "tokenizer.vocab_size",
            f"{tokenizer_vocab_size:,}, but the tokenizer in {folder} has {pieces:,} pieces",
            "weights only mean something with the tokenizer that they were trained with",
        )


def _match_names(
    folder: Path, names: Sequence[str], family: HFFamily, links: Sequence[TensorLink]
) -> dict[str, str]:
    """Map the class's names to the folder's, which may lack the prefix.

    Raises:
        RecipeError: tensors are missing, or nobody knows them.
    """
    wanted = {name for link in links for name in link.theirs}
    found: dict[str, str] = {}
    unknown = []
    for name in names:
        full = name if name in wanted else f"{family.prefix}{name}"
        is_tied_head = name == "lm_head.weight" and name not in wanted
        if full in wanted:
            found[full] = name
        elif not (is_tied_head or family.no_weights.search(name)):
            unknown.append(name)
    missing = sorted(wanted - found.keys())
    if missing or unknown:
        parts = (("missing", missing), ("unknown", unknown))
        raise RecipeError(
            str(folder),
            "; ".join(f"{what}: {name_some(which)}" for what, which in parts if which),
            "fetch the folder again, or name one that holds this model whole",
        )
    return found


def _check_shapes(link: TensorLink, ours: Sequence[Tensor], source: _Source) -> None:
    """Compare with the shapes that ours would have, exported."""
    cut = _cut(link, ours, source.rows)
    empty = [torch.empty_like(tensor, device="meta") for tensor in cut]
    for name, outline in zip(link.theirs, link.to_theirs(empty), strict=True):
        shape = source.reader.shape(source.found[name])
        if shape != tuple(outline.shape):
            raise RecipeError(
                source.found[name],
                f"has shape {list(shape)}, the recipe's model {list(outline.shape)}",
                source.remedy,
            )


def _fill(link: TensorLink, ours: Sequence[Tensor], source: _Source) -> None:
    theirs = link.to_ours([source.reader.read(source.found[name]) for name in link.theirs])
    for whole, kept, tensor in zip(ours, _cut(link, ours, source.rows), theirs, strict=True):
        kept.copy_(tensor)
        whole[len(kept) :] = 0.0


def _cut(link: TensorLink, ours: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Leave out the vocabulary rows that the folder does not have."""
    return [tensor[:rows] if link.is_vocabulary else tensor for tensor in ours]
