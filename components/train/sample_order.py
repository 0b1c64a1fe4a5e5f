"""The sample order of a run, from its recipe and what preparation found; without torch."""

from components.config.schema.recipe import Recipe
from components.data.manifest import Manifest
from components.data.mixture import limit_repeats, tempered_shares, windows_per_source
from components.data.order import Phase, SampleOrder


def make_order(recipe: Recipe, manifest: Manifest) -> SampleOrder:
    """Settle the shares of every phase by the tokens found.

    Raises:
        RecipeError: a source without one whole window, or that would be repeated too often.
    """
    windows = windows_per_source(manifest, recipe.budget.sequence_length)
    samples = {name: windows[name] for name in recipe.data.names}
    tokens = {name: manifest.sources[name].train_tokens for name in recipe.data.names}
    rule = recipe.data.mixture
    by_rule = tempered_shares(tokens, 1.0 if isinstance(rule, str) else rule.temperature)
    phases = [
        Phase(first_sample=first, shares=shares or by_rule, path=path)
        for first, path, shares in recipe.data_phases
    ]
    limits = {
        name: source.most_epochs
        for name, source in recipe.data.sources.items()
        if source.most_epochs is not None
    }
    limited = limit_repeats(
        phases,
        samples=samples,
        most_epochs=limits,
        total_samples=recipe.total_samples,
        surplus=recipe.data.surplus,
    )
    return SampleOrder(phases=limited, samples=samples, seed=recipe.budget.seed)
