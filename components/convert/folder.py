"""Write a model as a folder that ``transformers`` loads by itself, with its card."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from components.config.fingerprint import compute_fingerprint
from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.config.recipe import Recipe
from components.convert.family import choose_family
from components.convert.hf_family import HFFamily
from components.convert.hf_shards import MAX_SHARD_BYTES, write_shards
from components.convert.param_mapping import MTP_PREFIX
from components.convert.tokenizer import write_tokenizer
from components.data.files import create_folder
from components.errors import RecipeError
from components.run.records import Results
from components.terminal import hide_folders, printable

Rows = Literal["published", "padded"]
CONFIG = "config.json"
_MINIATURE = """\
**This is a miniature**: the recipe made small by rule, trained for minutes to show that it
works. It is no release of the published model and good for nothing but tests.
"""
_USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
prompt = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20, do_sample=False)[0]))
```
"""


def write_card(recipe: Recipe, *, step: int, tokens: int, results: Results | None) -> str:
    """Return the model card; ``results`` are absent while a run trains and if it was killed."""
    is_miniature = not isinstance(recipe.scale.shrink, str)
    parts = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
        f"# {_plain(recipe.name)}" + (", miniature" if is_miniature else ""),
        _plain(recipe.why),
        *([_MINIATURE] if is_miniature else []),
        _table(("", ""), _figures(recipe, step, tokens, results)),
    ]
    if recipe.assumed:
        said = "No source gives these values; the recipe sets them, for the reason beside each."
        assumed = recipe.assumed.items()
        rows = [(f"`{name}`", _brief(one.value), one.reason) for name, one in assumed]
        table = _table(("value of", "set to", "reason"), rows)
        parts += ["## Assumed, not in the sources", said, table]
    parts += ["## Use", _USE]
    return hide_folders("\n\n".join(part.strip() for part in parts) + "\n")


def _figures(
    recipe: Recipe, step: int, tokens: int, results: Results | None
) -> list[tuple[str, str]]:
    budget, data = recipe.budget, recipe.data
    shares = ", ".join(f"{name} {share:.3f}" for name, share in data.shares.items())
    rows = [
        ("recipe", f"`{recipe.name}`, scale `{recipe.scale.name}`"),
        ("fingerprint", f"`{compute_fingerprint(recipe)}`"),
        ("parameters", f"{recipe.derived.parameters.total:,}"),
        *_further(recipe),
        ("trained", f"{tokens:,} of {budget.total_tokens:,} tokens, {step:,} steps"),
        ("sequence length", f"{budget.sequence_length:,} tokens"),
        ("data", shares or f"{', '.join(data.names)}: shares by the rule {data.mixture}"),
    ]
    # What the run ended with says nothing about an earlier checkpoint.
    if results is None or results.tokens != tokens:
        return rows
    held_out, plain = results.held_out, "plain mean over sources"
    after = "" if held_out.step is None else f" after step {held_out.step:,}"
    losses = {
        "last training loss": results.loss,
        f"held-out loss{after}, weighted as the mixture": held_out.final,
        f"held-out loss{after}, {plain}": held_out.final_unweighted,
        "smoothed unigram model, weighted as the mixture": held_out.unigram,
        f"smoothed unigram model, {plain}": held_out.unigram_unweighted,
    }
    return rows + [(k, f"{v:.4f} nats a token") for k, v in losses.items() if v is not None]


def _further(recipe: Recipe) -> list[tuple[str, str]]:
    """Say what was trained beside the model, if anything was."""
    count = recipe.derived.parameters.mtp
    said = f"{count:,} beside them, if the class has a place for these"
    return [("parameters that predict further tokens", said)] if count else []


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} values"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(text: str) -> str:
    """Put text on one line, and escape tags, links and images of Markdown."""
    return re.sub(r"([\\<\[])", r"\\\1", printable(" ".join(text.split())))


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = []
    for line in (head, tuple("---" for _ in head), *rows):
        cells = (_plain(cell).replace("|", "\\|") for cell in line)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
) -> HFFamily:
    """Write weights, configuration, tokenizer and card beside, then rename.

    ``section`` is the recipe's model section, ``tokenizer`` the folder with its trained files.
    ``rows: published`` leaves the rows out that were added for training.

    Raises:
        RecipeError: the folder exists, or no class of Hugging Face computes this model.
    """
    features = read_decoder(section)
    family = choose_family(features)
    check_free(target)
    count = features.vocab_size if rows == "published" else features.padded_vocab_size
    tensors = their_tensors(model.state_dict(), family, features, rows=count)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    with create_folder(target) as beside:
        ids = write_tokenizer(
            tokenizer, tokenizer_section, beside, context_tokens=context_tokens
        )
        write_shards(beside, tensors, max_bytes=max_shard_bytes)
        config = make_config(
            family, features, rows=count, context_tokens=context_tokens, ids=ids, dtype=dtype
        )
        for file, tree in ((CONFIG, config), ("generation_config.json", ids)):
            (beside / file).write_text(json.dumps(tree, indent=2) + "\n", "utf-8")
        (beside / "README.md").write_text(card, "utf-8")
    return family


def check_free(target: Path) -> None:
    """Raise a RecipeError if the folder exists: nothing is written over."""
    if target.exists():
        raise RecipeError("file", f"{target} exists", "name another folder with file=FOLDER")


def make_config(
    family: HFFamily,
    features: DecoderSpec,
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
        **family.write_hf_config(features),
        **family.write_training(features, context_tokens),
        **ids,
        "use_cache": True,
    }


def their_tensors(
    parameters: Mapping[str, Tensor], family: HFFamily, features: DecoderSpec, *, rows: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the class's tensors under its names, made one mapping at a time."""
    mapped: set[str] = set()
    for mapping in family.param_mappings(features):
        ours = [parameters[name].detach() for name in mapping.ours]
        theirs = mapping.transform.to_theirs(ours)
        mapped.update(mapping.ours)
        for name, tensor in zip(mapping.theirs, theirs, strict=True):
            tensor = tensor[:rows] if mapping.is_vocabulary else tensor
            yield name, tensor.clone() if mapping.is_copy else tensor  # else one memory
    # What predicts further tokens serves training; few classes have a place for it.
    left = {name for name in set(parameters) - mapped if not name.startswith(MTP_PREFIX)}
    assert not left, f"{family.architecture} has no place for {sorted(left)}"
