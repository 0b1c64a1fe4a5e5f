"""What a reader has to know before a proposed mixture is used."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from components.config.schema.recipe import Recipe
from components.config.stand_ins import MOST_EPOCHS
from components.scaling.mixture import NEAR, MixtureGoal, MixtureProposal

LEAST = 1e-3  # nats: an interval that ends below is one at nothing


def of_proposal(found: MixtureProposal, asked: MixtureGoal) -> Iterator[str]:
    """Say what the fit is worth, beginning with whether there is a gain at all."""
    gain = found.gain
    if gain.low > LEAST:
        yield (
            f"the gain is beyond the fit's interval ({gain.low:.3f} to {gain.high:.3f} nats); "
            "that of the best of many mixtures by one fit is rather too large than too small"
        )
    else:
        yield (
            f"no gain is shown: by the drawn fits it is {gain.low:+.3f} to {gain.high:+.3f} "
            "nats. Keep the recipe's shares, or train more runs"
        )
    outside = [
        f"{one.source} {one.proposed.value:.3f} (tried {low:.3f} to {high:.3f})"
        for one in found.shares
        for low, high in [one.tried]
        if not low - NEAR <= one.proposed.value <= high + NEAR
    ]
    if not found.is_tried:
        said = f": {', '.join(outside)}" if outside else ""
        yield f"extrapolated: the proposal is not between the mixtures that were tried{said}"
    if not found.is_own_tried:
        yield "extrapolated: nor is the recipe's own mixture, whose loss is the laws', too"
    ends = zip(found.shares, asked.low, asked.high, strict=True)
    for one, low, high in ends:
        for bound in (low, high):
            if abs(one.proposed.value - bound) < 10 * NEAR:
                yield f"{one.source} is at its bound, {bound:g}: a wider one would change it"
    yield "intervals are of the fit alone: they know no other seed, and no error of its form"


def of_reading(
    recipe: Recipe,
    read: Mapping[str, float],
    names: Sequence[str],
    results: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """Say what is read how often: a law of shares knows no repetition."""
    for name, epochs in read.items():
        if epochs > MOST_EPOCHS:
            yield (
                f"{recipe.name} would read {name} {epochs:,.1f} times: beyond {MOST_EPOCHS} "
                "repeated text is worth less and less (Muennighoff et al. 2023, arXiv "
                f"2305.16264); bound its share or set data.sources.{name}.most_epochs"
            )
    unknown = [name for name in names if name not in read]
    if unknown:
        yield (
            f"how often {recipe.name} would read {', '.join(unknown)} is not known: the "
            "study's runs read other text"
        )
    for name in names:
        most = max(one["mixture"].get(name, {}).get("epochs", 0.0) for one in results)
        if most > MOST_EPOCHS:
            yield f"a run read {name} {most:.1f} times: the law knows no repetition"
    if recipe.data.phases:
        yield f"the shares of {', '.join(recipe.data.phases)} stay as they are"


def of_size(recipe: Recipe, small: Recipe) -> Iterator[str]:
    """Say how much smaller the runs are than what the proposal is for."""
    counted = (one.derived.parameters.total for one in (small, recipe))
    parameters, target = counted
    yield (
        f"of runs of {parameters:,} parameters and {small.budget.total_tokens:,} tokens; "
        f"{recipe.name} has {target:,} and {recipe.budget.total_tokens:,}. That mixtures rank "
        "alike at both sizes is assumed (Liu et al. 2024 found it from 1M to 1B parameters)"
    )
    if small.model["vocab_size"] != recipe.model["vocab_size"]:
        yield (
            f"losses are a token of {small.model['vocab_size']:,} pieces, {recipe.name} has "
            f"{recipe.model['vocab_size']:,}: with them weights of the sources change"
        )
