"""Build the data that a recipe names: tokenizer, packed token files, manifest."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import Outcome
from components.build import build
from components.errors import RecipeError
from components.spec.recipe import Recipe
from components.train.mixture import make_order
from data_prep.megatron_files import write_megatron
from data_prep.prepare import prepare
from data_prep.unigram_loss import unigram_losses


def run(arguments: Arguments) -> Outcome:
    """Prepare and print where the data is."""
    data = prepare_data(compose_recipe(arguments))
    sys.stdout.write(f"{data['folder']}\n")
    for name, drawn in data["mixture"].items():
        _say(
            f"{name}: {drawn['promised_share']:.4%} of the budget, "
            f"read {drawn['epochs']:.2f} times"
        )
    return Outcome()


def prepare_data(recipe: Recipe) -> dict[str, Any]:
    """Prepare what ``recipe`` reads, or find it prepared; return what a run keeps of it.

    Raises:
        RecipeError: a source without text, or text that cannot be used.
    """
    for name in recipe.data.names:
        source = recipe.data.sources.get(name)
        if source is None or not source.has_text:
            raise RecipeError(
                f"data.sources.{name}",
                "no text is named for this source",
                f"set data.sources.{name}.files=[...], or scale=mini for the embedded text",
            )
    folder, manifest = prepare(
        sources={name: recipe.data.sources[name] for name in recipe.data.names},
        tokenizer=build(recipe.tokenizer, "tokenizer"),
        tokenizer_folder=recipe.data.tokenizer_folder,
        root=Path(recipe.data.folder),
        name=f"{recipe.name}-{recipe.scale.name}",
        held_out_fraction=recipe.data.held_out_fraction,
        tokenizer_sample_bytes=recipe.data.tokenizer_sample_bytes,
        sequence_length=recipe.budget.sequence_length,
        verify=recipe.data.verify,
        say=_say,
    )
    if recipe.data.write_megatron:
        for prefix in write_megatron(folder, manifest):
            _say(f"megatron: {prefix}")
    drawn = make_order(recipe, manifest).drawn(recipe.total_samples)
    shares = {name: source.promised_share for name, source in drawn.items()}
    return {
        "folder": str(folder.resolve()),
        "key": manifest.key,
        "unigram": unigram_losses(folder, manifest, shares, recipe.shape.padded_vocab_size),
        "mixture": {name: asdict(source) for name, source in drawn.items()},
    }


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
