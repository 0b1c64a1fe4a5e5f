"""Build the data that a recipe names: tokenizer, packed token files, manifest."""

import sys
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.compose import compose_recipe
from command.outcome import Outcome
from components.build import build
from components.errors import RecipeError
from components.spec.recipe import Recipe
from data_prep.prepare import prepare
from data_prep.unigram_loss import unigram_losses


def run(arguments: Arguments) -> Outcome:
    """Prepare and print where the data is."""
    data = prepare_data(compose_recipe(arguments))
    sys.stdout.write(f"{data['folder']}\n")
    return Outcome()


def prepare_data(recipe: Recipe) -> dict[str, Any]:
    """Prepare what ``recipe`` reads, or find it prepared; return what a run keeps of it.

    Raises:
        RecipeError: a source without text, or text that cannot be used.
    """
    for name in recipe.data.shares:
        source = recipe.data.sources.get(name)
        if source is None or not (source.files or source.embedded):
            raise RecipeError(
                f"data.sources.{name}",
                "no text is named for this source",
                f"set data.sources.{name}.files=[...], or scale=mini for the embedded text",
            )
    folder, manifest = prepare(
        sources={name: recipe.data.sources[name] for name in recipe.data.shares},
        tokenizer=build(recipe.tokenizer, "tokenizer"),
        root=Path(recipe.data.folder),
        name=f"{recipe.name}-{recipe.scale.name}",
        held_out_fraction=recipe.data.held_out_fraction,
        tokenizer_sample_bytes=recipe.data.tokenizer_sample_bytes,
        sequence_length=recipe.budget.sequence_length,
        say=lambda text: print(text, file=sys.stderr),  # noqa: T201 (progress for a person)
    )
    unigram = unigram_losses(
        folder, manifest, recipe.data.shares, recipe.shape.padded_vocab_size
    )
    return {"folder": str(folder.resolve()), "key": manifest.key, "unigram": unigram}
