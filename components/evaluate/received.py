"""Load a Hugging Face model folder from any source with `transformers`.

`transformers` only gets a copy of ``config.json`` with the keys of a known family, the weights
as safetensors, and the tokenizer with its special pieces.
"""

import json
import logging
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.convert.config_json import FILE, UNREAD, read_known
from components.convert.hf_shards import INDEX, ShardReader
from components.convert.tokenizer import CONFIG_FILE, FETCH, SENTENCEPIECE_FILE, count_pieces
from components.convert.tokenizer import FILE as TOKENIZER
from components.errors import RecipeError, first_line
from components.json_file import read_mapping

# Keys that do not affect a recipe, but that transformers needs.
_ALSO = {"model_type", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"}
_DTYPES = (None, "float32", "float16", "bfloat16", "float64")
_ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
_VALUES = {
    **dict.fromkeys(("torch_dtype", "dtype"), _DTYPES),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), _ATTENTION),
}
_NOT_SIZES = ("position", "token", "window", "max")  # a size is no larger than the weights
_TOKENIZER_KEYS = (
    *("tokenizer_class", "model_max_length", "clean_up_tokenization_spaces", "legacy"),
    *("add_bos_token", "add_eos_token", "add_prefix_space"),
    *("bos_token", "eos_token", "pad_token", "unk_token"),
)


def _read_sizes(folder: Path) -> tuple[list[str], int, int]:
    """Return the weight files, and the numbers of tensors and of parameters in them."""
    with ShardReader(folder) as shards:
        names = shards.list_tensors()
        stored = sum(math.prod(shards.read_shape(name)) for name in names)
        return shards.list_files(), len(names), stored


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Copy known keys and link known files into a temporary folder; refuse all others."""
    config, _ = read_known(folder / FILE)
    for key, values in _VALUES.items():
        if config.get(key) not in values:
            problem = f"{config[key]!r} is not one of {', '.join(filter(None, values))}"
            raise RecipeError(f"{folder / FILE}: {key}", problem, "remove the key in a copy")
    known = {key: config[key] for key in config if key not in UNREAD or key in _ALSO}
    known["dtype"] = config.get("dtype") or config.get("torch_dtype") or "float32"
    files, tensors, stored = _read_sizes(folder)
    for key, size in known.items():
        is_size = isinstance(size, int) and not any(word in key for word in _NOT_SIZES)
        if is_size and size > (tensors if "layer" in key else stored):
            problem = f"{size:,}, but the files have {stored:,} weights in {tensors:,} tensors"
            raise RecipeError(f"{folder / FILE}: {key}", problem, FETCH)
    if count_pieces(folder) is None:
        raise RecipeError(str(folder), f"has no {TOKENIZER}", FETCH)
    with tempfile.TemporaryDirectory() as name:
        staged = Path(name)
        (staged / FILE).write_text(json.dumps(known))
        for file in (*files, INDEX, TOKENIZER, SENTENCEPIECE_FILE):
            if (folder / file).is_file():
                (staged / file).symlink_to((folder / file).resolve())
        if (folder / CONFIG_FILE).is_file():
            tree = read_mapping(folder / CONFIG_FILE, remedy=FETCH)
            tree = {key: tree[key] for key in _TOKENIZER_KEYS if key in tree}
            (staged / CONFIG_FILE).write_text(json.dumps(tree))
        yield staged


def read_received(folder: Path, dtype: Any, source: Path) -> tuple[Any, Any]:
    """Load the model and the tokenizer from a staged copy of ``source``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    load: Any = AutoModelForCausalLM  # it has no types
    logging.getLogger("transformers").setLevel(logging.ERROR)  # its report is in colors
    try:
        with torch.device("meta"):  # sizes first: nothing is allocated
            outline = load.from_config(AutoConfig.from_pretrained(folder))
        needed = sum(weight.numel() for weight in outline.parameters())
        *_, stored = _read_sizes(folder)
        if needed > stored:
            raise ValueError(f"config.json needs {needed:,} weights, the files have {stored:,}")
        model, report = load.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **safe
        )
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{missing[0]} and {len(missing) - 1} more tensors are missing")
        return model, AutoTokenizer.from_pretrained(folder, **safe)
    except Exception as error:  # a malformed file makes transformers raise anything
        problem = f"transformers cannot load it: {type(error).__name__}: {first_line(error)}"
        raise RecipeError(str(source), problem, FETCH) from error
