"""Read weights: of a published folder one tensor at a time, and of a checkpoint."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

from components.build import build
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

NO_FOLDER = "name a folder as save_pretrained or action=export writes it"


def load_weights(checkpoint: Path, marker: Marker, section: Mapping[str, Any]) -> nn.Module:
    """Build the recipe's model on the CPU and fill it, whatever layout wrote the checkpoint.

    Where the checkpoint has masters of rounded weights, these are taken.
    """
    with torch.device("meta"):
        model: nn.Module = build(section, "model")
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
    """Fill tensors from a checkpoint in one process, or raise a RecipeError if it differs."""
    reader.check_tensors(tensors)
    with warnings.catch_warnings():
        alone = "torch.distributed is disabled"
        warnings.filterwarnings("ignore", message=alone)  # meant: an export is one process
        try:
            load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointException as wrapper:  # torch hides what was raised, a signal too
            failure, _ = wrapper.failures[0]
            raise failure from None


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
            missing or unknown tensors, or tensors of another shape; or nothing of it predicts
            further tokens, as the model does.
    """
    features = read_decoder(section)
    if (folder / universal.PARTS).is_dir():
        reader = universal.UniversalReader(folder)
        mappings = universal.map_universal(folder, features, reader.names())
        rows = universal.count_rows(folder, features, reader, tokenizer_vocab_size)
        found = {name: name for mapping in mappings for name in mapping.theirs}
        _fill(model, reader, mappings, found=found, rows=rows, remedy=universal.REMEDY)
        return
    family = choose_family(features)
    config = read_mapping(folder / "config.json", remedy=NO_FOLDER)
    _check_config(str(folder / "config.json"), config, family, features)
    _check_vocabulary(folder, features, config.get("vocab_size"), tokenizer_vocab_size)
    mappings = [row for row in family.param_mappings(features) if not row.is_copy]
    with ShardReader(folder) as shards:
        found = _match_names(folder, shards.names(), family, mappings, features)
        remedy = "the folder contradicts its own config.json; fetch it again"
        _fill(model, shards, mappings, found=found, rows=config["vocab_size"], remedy=remedy)


def _fill(
    model: nn.Module,
    reader: ShardReader | universal.UniversalReader,
    mappings: Sequence[ParamMapping],
    *,
    found: Mapping[str, str],
    rows: int,
    remedy: str,
) -> None:
    """Copy every mapped tensor, by the folder's names in ``found``."""
    parameters = dict[str, Tensor](model.named_parameters()) | dict(model.named_buffers())
    unmapped = set(parameters) - {name for mapping in mappings for name in mapping.ours}
    if any(name.startswith(MTP_PREFIX) for name in unmapped):
        problem = "nothing in these weights predicts further tokens"
        raise RecipeError("model.mtp", problem, "set model.mtp=null, or model.init_from=none")
    assert not unmapped, f"the weights have no place for {sorted(unmapped)}"
    held = [mapping for mapping in mappings if all(name in parameters for name in mapping.ours)]
    for mapping in held:  # all shapes are compared first, with ours exported
        ours = _cut(mapping, parameters, rows)
        empty = [torch.empty_like(tensor, device="meta") for tensor in ours]
        for name, outline in zip(
            mapping.theirs, mapping.transform.to_theirs(empty), strict=True
        ):
            shape, wanted = reader.shape(found[name]), tuple(outline.shape)
            if shape != wanted:
                problem = f"has shape {list(shape)}, the recipe's model {list(wanted)}"
                raise RecipeError(found[name], problem, remedy)
    with torch.no_grad():
        for mapping in held:
            theirs = mapping.transform.to_ours([
                reader.read(found[name]) for name in mapping.theirs
            ])
            kept = _cut(mapping, parameters, rows)
            for name, part, tensor in zip(mapping.ours, kept, theirs, strict=True):
                part.copy_(tensor)
                parameters[name][len(part) :] = 0.0


def _cut(mapping: ParamMapping, parameters: Mapping[str, Tensor], rows: int) -> list[Tensor]:
    """Return a mapping's parameters without vocabulary rows that the folder lacks."""
    ours = [parameters[name] for name in mapping.ours]
    return [tensor[:rows] for tensor in ours] if mapping.is_vocabulary else ours


def _check_config(
    file: str, config: Mapping[str, Any], family: HFFamily, features: DecoderSpec
) -> None:
    """Compare what is computed, key by key, and name every difference."""
    ours, kind = family.write_hf_config(features), config.get("model_type")
    if kind != family.model_type:
        problem = f"model_type is {kind!r}, the recipe's model is of type {family.model_type!r}"
        remedy = "choose the model of the recipe that these weights belong to"
        raise RecipeError(file, problem, remedy)
    theirs = family.read_hf_config(config)
    different = [
        f"{key}: {theirs[key]} there, {here} in the recipe"
        for key, here in ours.items()
        if theirs[key] != here
    ]
    if different:
        problem = "this is another model\n  " + "\n  ".join(different)
        remedy = "set the model section to the folder's values, or name another folder"
        raise RecipeError(file, problem, remedy)


def _check_vocabulary(
    folder: Path, features: DecoderSpec, rows: object, tokenizer_vocab_size: int
) -> None:
    own = sorted({features.vocab_size, features.padded_vocab_size})
    if rows not in own:
        wanted = " or ".join(f"{count:,}" for count in own)
        problem = f"{folder} has {rows} vocabulary rows, the recipe {wanted}"
        remedy = f"set model.vocab_size={rows}, with the tokenizer of that folder"
        raise RecipeError("model.vocab_size", problem, remedy)
    if (pieces := count_pieces(folder)) not in {None, tokenizer_vocab_size}:
        own_pieces = f"{tokenizer_vocab_size:,}, but the tokenizer in {folder}"
        problem = f"{own_pieces} has {pieces:,} pieces"
        remedy = "weights only mean something with the tokenizer that they were trained with"
        raise RecipeError("tokenizer.vocab_size", problem, remedy)


def _match_names(
    folder: Path,
    names: Sequence[str],
    family: HFFamily,
    mappings: Sequence[ParamMapping],
    features: DecoderSpec,
) -> dict[str, str]:
    """Map the class's names to the folder's, which may lack the prefix."""
    wanted = {name for mapping in mappings for name in mapping.theirs}
    found: dict[str, str] = {}
    unknown = []
    for name in names:
        full = name if name in wanted else f"{family.weight_prefix}{name}"
        is_tied_head = name == "lm_head.weight" and name not in wanted
        if full in wanted:
            found[full] = name
        elif not (is_tied_head or family.is_ignored(features, name)):
            unknown.append(name)
    if said := name_differences(sorted(wanted - found.keys()), unknown):
        remedy = "fetch the folder again, or name one that holds this model whole"
        raise RecipeError(str(folder), said, remedy)
    return found
