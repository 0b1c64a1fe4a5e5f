"""Points of a mixture study: the recipe's own shares, and others drawn around them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from command.arguments import parse_word, read_point
from command.compose import compose_recipe
from command.recipe.lock_file import check_recipe_place
from command.study.schema import RECIPE, SHARES, MixtureRule, Point, read_value
from components.config.schema.recipe import Recipe, read_section
from components.config.suggestions import nearest
from components.errors import RecipeError
from components.scaling.mixture_law import fewest_runs

DECIMALS = 4  # of a share
STRENGTHS = 15  # between the two of the rule, as in RegMix's code
TRIES = 1_000  # mixtures drawn for each one that is wanted
FEWEST_SOURCES = 3  # with two, one share is all: a grid tries it
Shares = dict[str, float]


def spread_mixture(tree: Mapping[str, Any], where: str, words: Sequence[str]) -> dict[str, Any]:
    """Add ``points`` to a mixture study's file: a pure function of it and its recipe.

    Raises:
        RecipeError: the rule lacks something, the recipe has no mixture that it could vary, or
            there are too few sources or runs, or bounds that too few mixtures meet.
    """
    place = f"{where}.mixture"
    if not isinstance(tree["mixture"], dict):
        problem = f"{tree['mixture']!r} is no mapping"
        raise RecipeError(place, problem, "see studies/mixture.yaml")
    rule = read_section(MixtureRule, tree["mixture"], place)
    own = own_shares(_recipe(tree, where, words), place)
    for path, problem, remedy in _mistakes(rule, own):
        raise RecipeError(f"{place}{path}", problem, remedy)
    mixtures = [own, *_drawn(rule, own, place)]
    points = [{SHARES: written(shares)} for shares in mixtures]
    fixed = {key: value for key, value in _fixed(tree).items() if _is_read(key, own)}
    return {**tree, "set": fixed, "points": points}


def _is_read(key: str, shares: Shares) -> bool:
    """Whether a key is none of a source that leaves the miniature, as it has no text."""
    parts = key.split(".")
    return parts[:2] != ["data", "sources"] or len(parts) < 3 or parts[2] in shares


def written(shares: Mapping[str, float]) -> str:
    """Write shares as the value of ``data.shares``."""
    parts = (f"{name}: {share:.{DECIMALS}f}" for name, share in shares.items())
    return f"{{{', '.join(parts)}}}"


def shares_of(point: Point) -> Shares:
    """Read the shares of a point."""
    read: Any = parse_word(f"{SHARES}={point[SHARES]}").value()
    return {name: float(share) for name, share in read.items()}


def varied_sources(rule: MixtureRule, shares: Mapping[str, float]) -> tuple[str, ...]:
    """Name the sources whose shares vary."""
    return rule.sources or tuple(shares)


def bounds_of(rule: MixtureRule, name: str) -> tuple[float, float]:
    """Return between what a source's share may be."""
    return rule.bounds.get(name, (0.0, 1.0))


def _fixed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the study sets; what is no mapping is refused with the other fields."""
    fixed = tree.get("set")
    return fixed if isinstance(fixed, dict) else {}


def _recipe(tree: Mapping[str, Any], where: str, words: Sequence[str]) -> Recipe:
    """Compose the recipe that the points vary, with what the study sets.

    Raises:
        RecipeError: it cannot be composed, or the words set what varies.
    """
    said, chosen = {word.partition("=")[0] for word in words}, []
    for key in said:
        if key == SHARES or key.startswith(f"{SHARES}."):
            remedy = f"leave {key} out: the study draws around the recipe's own shares"
            raise RecipeError(key, f"{where} varies it", remedy)
    if RECIPE not in said:
        name = check_recipe_place(str(tree.get(RECIPE)), f"{where}.{RECIPE}")
        chosen.append(f"{RECIPE}={name}")
    if "cluster" not in said:
        chosen.append(f"cluster={tree.get('cluster')}")
    fixed = _fixed(tree).items()
    own = {key: read_value(key, value) for key, value in fixed if key not in said}
    return compose_recipe(replace(read_point([*words, *chosen]), file_values=own))


def own_shares(recipe: Recipe, place: str) -> Shares:
    """Return the shares of a recipe, written with four decimals, that add up to 1.

    Raises:
        RecipeError: its shares follow from sizes, change by phase, or are a miniature's.
    """
    data, shrink = recipe.data, recipe.scale.shrink
    if data.mixture != "given":
        problem = f"the shares of {recipe.name} follow from the sizes of its sources"
        raise RecipeError(place, problem, "choose a recipe with data.mixture=given")
    if data.phases:
        problem = f"the shares of {recipe.name} change with {', '.join(data.phases)}"
        raise RecipeError(place, problem, 'set data.phases: "{}" in the study')
    if not isinstance(shrink, str) and shrink.carriers:
        share = sum(one.share for one in shrink.carriers.values())
        problem = f"{share:.0%} of the miniature are texts of no source of {recipe.name}"
        raise RecipeError(place, problem, 'set scale.shrink.carriers: "{}" in the study')
    return rounded(dict(data.shares), tuple(data.shares))


def rounded(shares: Shares, names: Sequence[str], decimals: int = DECIMALS) -> Shares:
    """Round so that the sum stays 1; the largest share of ``names`` takes what is over."""
    found = {name: round(share, decimals) for name, share in shares.items()}
    largest = max(names, key=lambda name: found[name])
    rest = sum(share for name, share in found.items() if name != largest)
    return {**found, largest: round(1 - rest, decimals)}


def _mistakes(rule: MixtureRule, own: Shares) -> Iterator[tuple[str, str, str]]:
    names = varied_sources(rule, own)
    yield from _unknown(rule, own)
    if len(names) < FEWEST_SOURCES:
        problem = f"only {' and '.join(names)} vary"
        remedy = f"vary {FEWEST_SOURCES} sources at least; of two, list the points of a grid"
        yield ".sources", problem, remedy
    fewest = fewest_runs(len(names)) + 1
    if rule.runs < fewest:
        problem = f"{rule.runs} runs of {len(names)} sources tell no law, one of them held out"
        yield ".runs", problem, f"train {fewest} at least"
    if rule.weights and not any(rule.weights.values()):
        yield ".weights", "all are 0", "give one held-out loss a weight"
    low, high = rule.strength
    if low > high:
        yield ".strength", f"{low:g} is above {high:g}", "write the weaker one first"
    for name in names:
        low, high = bounds_of(rule, name)
        if not low <= own[name] <= high:
            problem = f"the recipe's own share is {own[name]:.{DECIMALS}f}, and always tried"
            yield f".bounds.{name}", problem, "let the bounds hold it"
        if own[name] == 0:
            problem = f"the share of {name} is 0: nothing is drawn around it"
            yield ".sources", problem, "name the others as mixture.sources"


def _unknown(rule: MixtureRule, own: Shares) -> Iterator[tuple[str, str, str]]:
    """Report names that are no source's, and bounds of one that does not vary."""
    names = varied_sources(rule, own)
    places = (("sources", rule.sources, own), ("bounds", rule.bounds, names))
    for path, given, known in (*places, ("weights", rule.weights, own)):
        for name in given:
            if name not in known:
                problem = f"{name!r} is none of {', '.join(known)}"
                yield f".{path}", problem, nearest(name, list(known))


def _drawn(rule: MixtureRule, own: Shares, place: str) -> list[Shares]:
    """Draw the other mixtures, each once."""
    names = varied_sources(rule, own)
    mass = sum(own[name] for name in names)
    centre = np.array([own[name] for name in names]) ** rule.temperature
    centre /= centre.sum()
    generator = np.random.default_rng(rule.seed)
    strengths = np.geomspace(*rule.strength, STRENGTHS)
    found: list[Shares] = []
    seen = {tuple(own.values())}
    for _ in range(TRIES * rule.runs):
        if len(found) == rule.runs - 1:
            break
        drawn = mass * generator.dirichlet(centre * generator.choice(strengths))
        parts = dict(zip(names, map(float, drawn), strict=True))
        shares = rounded({**own, **parts}, names)
        inside = all(
            low <= shares[name] <= high
            for name in names
            for low, high in [bounds_of(rule, name)]
        )
        if inside and (key := tuple(shares.values())) not in seen:
            seen.add(key)
            found.append(shares)
    if len(found) < rule.runs - 1:
        problem = f"of {TRIES * rule.runs:,} mixtures drawn {len(found)} are within the bounds"
        raise RecipeError(f"{place}.bounds", problem, "widen them, or raise strength")
    return found
