"""Write a model as a folder that ``transformers`` loads by itself."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from components.convert.family import Family, choose_family
from components.convert.features import Features, read_features
from components.convert.shards import MAX_SHARD_BYTES, write_shards
from components.convert.tokenizer import write_tokenizer
from components.errors import RecipeError

Rows = Literal["published", "padded"]
CONFIG = "config.json"


def write_folder(
    target: Path,
    *,
    model: nn.Module,
    section: Mapping[str, Any],
    tokenizer: Path,
    tokenizer_section: Mapping[str, Any],
    context_tokens: int,
    rows: Rows,
    card: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Family:
    """Write weights, configuration, tokenizer and card beside, then rename.

    ``section`` is the recipe's model section, ``tokenizer`` the folder with its trained files.
    ``rows: published`` leaves the rows out that were added for training.

    Raises:
        RecipeError: the folder exists, or no class of Hugging Face computes this model.
    """
    features = read_features(section)
    family = choose_family(features)
    check_free(target)
    beside = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    ids = write_tokenizer(tokenizer, tokenizer_section, beside, context_tokens=context_tokens)
    count = features.vocab_size if rows == "published" else features.padded_vocab_size
    tensors = their_tensors(dict(model.named_parameters()), family, features, rows=count)
    write_shards(beside, tensors, max_bytes=max_shard_bytes)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config = make_config(
        family, features, rows=count, context_tokens=context_tokens, ids=ids, dtype=dtype
    )
    _write_json(beside / CONFIG, config)
    _write_json(beside / "generation_config.json", ids)
    (beside / "README.md").write_text(card, "utf-8")
    beside.rename(target)
    return family


def check_free(target: Path) -> None:
    """Refuse to write over anything.

    Raises:
        RecipeError: the folder exists.
    """
    if target.exists():
        raise RecipeError("file", f"{target} exists", "name another folder with file=FOLDER")


def make_config(
    family: Family,
    features: Features,
    *,
    rows: int,
    context_tokens: int,
    ids: Mapping[str, int | None],
    dtype: str,
) -> dict[str, Any]:
    """Compose ``config.json``, with every key that the class reads.

    ``torch_dtype`` and a plain ``rope_theta`` are spelled as all versions read them.
    """
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "torch_dtype": dtype,
        "vocab_size": rows,
        **family.shape(features),
        **family.training(features, context_tokens),
        **ids,
        "use_cache": True,
    }


def their_tensors(
    parameters: Mapping[str, Tensor], family: Family, features: Features, *, rows: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the class's tensors under its names, made one link at a time."""
    linked: set[str] = set()
    for link in family.links(features):
        ours = [parameters[name].detach() for name in link.ours]
        theirs = link.to_theirs(ours)
        linked.update(link.ours)
        for name, tensor in zip(link.theirs, theirs, strict=True):
            yield name, tensor[:rows] if link.is_vocabulary else tensor
    left = set(parameters) - linked
    assert not left, f"{family.architecture} has no place for {sorted(left)}"


def _write_json(file: Path, tree: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(tree, indent=2) + "\n", "utf-8")
