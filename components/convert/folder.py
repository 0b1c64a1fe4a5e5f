"""Export a model as a folder that ``transformers`` loads without further code, with a card."""

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
from components.terminal import escape_invisible, hide_folders

Rows = Literal["published", "padded"]
CONFIG = "config.json"
_MINIATURE = """\
**This is a miniature**: a scaled-down recipe, trained for minutes to show that the recipe
works. It is not a release of the published model. Use it only for tests.
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
    """Return the model card. ``results`` is None while a run trains and if it was killed."""
    is_miniature = not isinstance(recipe.scale.shrink, str)
    parts = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
        f"# {_plain(recipe.name)}" + (", miniature" if is_miniature else ""),
        _plain(recipe.description),
        *([_MINIATURE] if is_miniature else []),
        _table(("", ""), _figures(recipe, step, tokens, results)),
    ]
    if recipe.assumed:
        note = "The sources do not give these values. The recipe sets them, with a reason."
        assumed = recipe.assumed.items()
        rows = [
            (f"`{name}`", _brief(assumption.value), assumption.reason)
            for name, assumption in assumed
        ]
        table = _table(("value of", "set to", "reason"), rows)
        parts += ["## Assumed, not in the sources", note, table]
    parts += ["## Use", _USE]
    return hide_folders("\n\n".join(part.strip() for part in parts) + "\n")


def _figures(
    recipe: Recipe, step: int, tokens: int, results: Results | None
) -> list[tuple[str, str]]:
    budget, data = recipe.budget, recipe.data
    shares = ", ".join(f"{name} {share:.3f}" for name, share in data.shares.items())
    count = recipe.derived_numbers.parameters.mtp
    trained = f"{count:,} more, if the class supports these"
    mtp = [("multi-token prediction parameters", trained)] if count else []
    rows = [
        ("recipe", f"`{recipe.name}`, scale `{recipe.scale.name}`"),
        ("fingerprint", f"`{compute_fingerprint(recipe)}`"),
        ("parameters", f"{recipe.derived_numbers.parameters.total:,}"),
        *mtp,
        ("trained", f"{tokens:,} of {budget.total_tokens:,} tokens, {step:,} steps"),
        ("sequence length", f"{budget.sequence_length:,} tokens"),
        ("data", shares or f"{', '.join(data.source_names)}: shares by {data.mixture}"),
    ]
    # The final results do not apply to an earlier checkpoint.
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
    return rows + [(k, f"{v:.4f} nats/token") for k, v in losses.items() if v is not None]


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} values"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(text: str) -> str:
    """Return text on one line, with Markdown tags, links and images escaped."""
    return re.sub(r"([\\<\[])", r"\\\1", escape_invisible(" ".join(text.split())))


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
    """Write weights, configuration, tokenizer and card to a temporary folder, then rename it.

    ``section`` is the recipe's model section. ``tokenizer`` is the folder of the trained
    tokenizer. ``rows="published"`` omits vocabulary rows that were added for training.
    """
    features = read_decoder(section)
    family = choose_family(features)
    check_free(target)
    count = features.vocab_size if rows == "published" else features.padded_vocab_size
    tensors = their_tensors(model.state_dict(), family, features, rows=count)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    with create_folder(target) as partial:
        ids = write_tokenizer(
            tokenizer, tokenizer_section, partial, context_tokens=context_tokens
        )
        write_shards(partial, tensors, max_bytes=max_shard_bytes)
        config = make_config(
            family, features, rows=count, context_tokens=context_tokens, ids=ids, dtype=dtype
        )
        for file, tree in ((CONFIG, config), ("generation_config.json", ids)):
            (partial / file).write_text(json.dumps(tree, indent=2) + "\n", "utf-8")
        (partial / "README.md").write_text(card, "utf-8")
    return family


def check_free(target: Path) -> None:
    """Raise a RecipeError if the folder exists: nothing is overwritten."""
    if target.exists():
        raise RecipeError("file", f"{target} exists", "set another folder with file=FOLDER")


def make_config(
    family: HFFamily,
    features: DecoderSpec,
    *,
    rows: int,
    context_tokens: int,
    ids: Mapping[str, int | None],
    dtype: str,
) -> dict[str, Any]:
    """Return ``config.json`` with every key that the class reads.

    ``torch_dtype`` and a plain ``rope_theta`` have the spelling that all versions read.
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
    """Yield the class's tensors by its names, converted one mapping at a time."""
    mapped: set[str] = set()
    for mapping in family.param_mappings(features):
        ours = [parameters[name].detach() for name in mapping.ours]
        theirs = mapping.transform.to_theirs(ours)
        mapped.update(mapping.ours)
        for name, tensor in zip(mapping.theirs, theirs, strict=True):
            tensor = tensor[:rows] if mapping.is_vocabulary else tensor
            yield name, tensor.clone() if mapping.is_copy else tensor  # no shared memory
    # Multi-token prediction is for training, and few classes have these weights.
    unmapped = {name for name in set(parameters) - mapped if not name.startswith(MTP_PREFIX)}
    assert not unmapped, f"{family.architecture} has no place for {sorted(unmapped)}"
