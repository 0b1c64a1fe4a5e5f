"""Read weights of a published folder, one tensor at a time, and of a checkpoint."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

from components.build import build_node
from components.checkpoint.layout import PieceReader, read_pieces
from components.checkpoint.metadata import Marker
from components.checkpoint.saving import WEIGHTS, master_of
from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.convert import universal
from components.convert.family import choose_family
from components.convert.hf_family import HFFamily
from components.convert.hf_shards import ShardReader
from components.convert.param_mapping import MTP_PREFIX, ParamMapping, name_differences
from components.convert.tokenizer import count_pieces
from components.distributed.weight_shards import rows_of
from components.errors import RecipeError
from components.json_file import read_mapping

NO_FOLDER = "set it to a folder written by save_pretrained or action=export"


def load_weights(checkpoint: Path, marker: Marker, section: Mapping[str, Any]) -> nn.Module:
    """Build the recipe's model on the CPU; load a checkpoint, its master weights if any."""
    with torch.device("meta"):
        model: nn.Module = build_node(section, "model")
    model = model.to_empty(device="cpu")
    reader = PieceReader(checkpoint, read_pieces(checkpoint, marker.files))
    tensors = {}
    for name, value in model.state_dict().items():
        if (master := master_of(name)) in reader.entries:
            tensors[master] = rows_of(value)
        else:
            tensors[f"{WEIGHTS}{name}"] = value
    read_alone(tensors, reader)
    return model


def read_alone(tensors: dict[str, Tensor], reader: PieceReader) -> None:
    """Load tensors from a checkpoint in one process; raise a RecipeError if it differs."""
    reader.check_tensors(tensors)
    with warnings.catch_warnings():
        alone = "torch.distributed is disabled"
        warnings.filterwarnings("ignore", message=alone)  # intended: an export is one process
        try:
            load(tensors, storage_reader=reader, no_dist=True)
        except (
            CheckpointException
        ) as wrapper:  # torch wraps all exceptions, even those of signals
            failure, _ = wrapper.failures[0]
            raise failure from None


def read_folder(
    folder: Path, model: nn.Module, *, section: Mapping[str, Any], tokenizer_vocab_size: int
) -> None:
    """Load the weights of ``folder`` into ``model``, in the model's precision.

    The folder is a Hugging Face folder or a universal checkpoint of Megatron-DeepSpeed. Call
    this function before the model is wrapped. A pipeline stage loads its own part. Padding rows
    of the vocabulary that the folder lacks become zero: their logits are then 0 for every
    token, and the first steps push them down as in a run from scratch.
    """
    features = read_decoder(section)
    if (folder / universal.PARTS).is_dir():
        reader = universal.UniversalReader(folder)
        mappings = universal.map_universal(folder, features, reader.list_tensors())
        rows = universal.count_rows(folder, features, reader, tokenizer_vocab_size)
        names = {name: name for mapping in mappings for name in mapping.theirs}
        _fill(model, reader, mappings, full_names=names, rows=rows, remedy=universal.REMEDY)
        return
    family = choose_family(features)
    config = read_mapping(folder / "config.json", finite=False, remedy=NO_FOLDER)
    _check_config(str(folder / "config.json"), config, family, features)
    _check_vocabulary(folder, features, config.get("vocab_size"), tokenizer_vocab_size)
    mappings = [row for row in family.param_mappings(features) if not row.is_copy]
    with ShardReader(folder) as shards:
        names = _match_names(folder, shards.list_tensors(), family, mappings, features)
        remedy = "the weights contradict the folder's config.json; download the folder again"
        _fill(
            model, shards, mappings, full_names=names, rows=config["vocab_size"], remedy=remedy
        )


def _fill(
    model: nn.Module,
    reader: ShardReader | universal.UniversalReader,
    mappings: Sequence[ParamMapping],
    *,
    full_names: Mapping[str, str],
    rows: int,
    remedy: str,
) -> None:
    """Copy every mapped tensor. ``full_names`` maps the class's names to the folder's."""
    parameters = dict[str, Tensor](model.named_parameters()) | dict(model.named_buffers())
    unmapped = set(parameters) - {name for mapping in mappings for name in mapping.ours}
    if any(name.startswith(MTP_PREFIX) for name in unmapped):
        problem = "these weights have no multi-token prediction layers"
        raise RecipeError("model.mtp", problem, "set model.mtp=null, or model.init_from=none")
    assert not unmapped, f"no weights are mapped to {sorted(unmapped)}"
    used = [mapping for mapping in mappings if all(name in parameters for name in mapping.ours)]
    for mapping in used:  # first compare all shapes with the export of ours
        ours = _cut(mapping, parameters, rows)
        empty = [torch.empty_like(tensor, device="meta") for tensor in ours]
        for name, outline in zip(
            mapping.theirs, mapping.transform.to_theirs(empty), strict=True
        ):
            shape, wanted = reader.read_shape(full_names[name]), tuple(outline.shape)
            if shape != wanted:
                problem = f"has shape {list(shape)}, the recipe's model has {list(wanted)}"
                raise RecipeError(full_names[name], problem, remedy)
    with torch.no_grad():
        for mapping in used:
            theirs = mapping.transform.to_ours([
                reader.read_tensor(full_names[name]) for name in mapping.theirs
            ])
            parts = _cut(mapping, parameters, rows)
            for name, part, tensor in zip(mapping.ours, parts, theirs, strict=True):
                part.copy_(tensor)
                parameters[name][len(part) :] = 0.0


def _cut(mapping: ParamMapping, parameters: Mapping[str, Tensor], rows: int) -> list[Tensor]:
    """Return a mapping's parameters without vocabulary rows that the folder lacks."""
    ours = [parameters[name] for name in mapping.ours]
    return [tensor[:rows] for tensor in ours] if mapping.is_vocabulary else ours


def _check_config(
    file: str, config: Mapping[str, Any], family: HFFamily, features: DecoderSpec
) -> None:
    """Raise a RecipeError with all settings that differ between the folder and the model."""
    if (kind := config.get("model_type")) != family.model_type:
        problem = f"model_type is {kind!r}, the recipe's model has {family.model_type!r}"
        remedy = "use weights of the recipe's model, or the recipe of these weights"
        raise RecipeError(file, problem, remedy)
    if different := family.compare_config(config, features):
        problem = "differs from the recipe's model" + "".join(
            f"\n  {key}: {there} there, {here} in the recipe" for key, there, here in different
        )
        remedy = "set the model section to the folder's values, or use another folder"
        raise RecipeError(file, problem, remedy)


def _check_vocabulary(
    folder: Path, features: DecoderSpec, rows: object, tokenizer_vocab_size: int
) -> None:
    accepted = sorted({features.vocab_size, features.padded_vocab_size})
    if rows not in accepted:
        wanted = " or ".join(f"{count:,}" for count in accepted)
        problem = f"{folder} has {rows} vocabulary rows, the recipe has {wanted}"
        remedy = f"set model.vocab_size={rows}, and use the folder's tokenizer"
        raise RecipeError("model.vocab_size", problem, remedy)
    if (pieces := count_pieces(folder)) not in {None, tokenizer_vocab_size}:
        own_pieces = f"{tokenizer_vocab_size:,}, but the tokenizer in {folder}"
        problem = f"{own_pieces} has {pieces:,} pieces"
        remedy = "use the tokenizer that the weights were trained with"
        raise RecipeError("tokenizer.vocab_size", problem, remedy)


def _match_names(
    folder: Path,
    names: Sequence[str],
    family: HFFamily,
    mappings: Sequence[ParamMapping],
    features: DecoderSpec,
) -> dict[str, str]:
    """Return the folder's name for each class name. The folder may omit the prefix."""
    wanted = {name for mapping in mappings for name in mapping.theirs}
    full_names: dict[str, str] = {}
    unknown = []
    for name in names:
        full = family.normalize_name(name)
        full = full if full in wanted else f"{family.weight_prefix}{full}"
        is_tied_head = name == "lm_head.weight" and name not in wanted
        if full in wanted:
            full_names[full] = name
        elif not (is_tied_head or family.is_ignored(features, name)):
            unknown.append(name)
    if differences := name_differences(sorted(wanted - full_names.keys()), unknown):
        remedy = "download the folder again, or use a folder with the complete model"
        raise RecipeError(str(folder), differences, remedy)
    return full_names
