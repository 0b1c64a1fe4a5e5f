"""A mixture study's finished runs, and the shares that they propose for a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from command.study import mixture_notes as notes
from command.study.request import StudyRequest
from command.study.runs import all_results
from command.study.schema import MixtureStudy
from command.study.shares import Shares, bounds_of, rounded, shares_of, varied_sources
from components.config.schema.data import Source
from components.config.schema.recipe import Recipe, read_recipe
from components.errors import RecipeError
from components.run.records import DataRecord, read_record
from components.scaling.mixture import (
    MixtureGoal,
    MixtureProposal,
    MixtureRuns,
    propose_mixture,
)

DECIMALS = 6  # of a recipe's shares


@dataclass(frozen=True, kw_only=True)
class MixtureResult:
    """What a study proposes for ``recipe``: all of its ``shares``, and what limits them.

    ``epochs`` is how often the recipe would read a source, where its size is known.
    """

    study: MixtureStudy
    recipe: Recipe
    proposal: MixtureProposal
    shares: Shares
    epochs: Mapping[str, float]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the tree that ``output=json`` promises."""
        return {
            "study": self.study.name,
            "recipe": self.recipe.name,
            "cluster": self.recipe.cluster.name,
            **self.proposal.model_dump(mode="json"),
            "data": {"shares": self.shares},
            "epochs": dict(self.epochs),
            "notes": self.notes,
        }

    def as_yaml(self) -> str:
        """Write the words to put into the recipe."""
        lines = (f"    {name}: {share:.{DECIMALS}f}" for name, share in self.shares.items())
        return "\n".join(["data:", "  shares:", *lines])


def read_mixture(asked: StudyRequest, study: MixtureStudy, recipe: Recipe) -> MixtureResult:
    """Fit the runs of a study and propose shares for ``recipe``.

    Raises:
        RecipeError: runs are missing, tell no law or do not compare, or the recipe has other
            sources than the study.
    """
    results = all_results(asked, study)
    small = _small(asked, study)
    mixtures = [shares_of(point) for point in study.points]
    names = varied_sources(study.mixture, mixtures[0])
    own = _own(recipe, names)
    runs, targets = _runs(study, mixtures, results, names), tuple(mixtures[0])
    mass = float(runs.shares[0].sum())
    weights = np.array([study.mixture.weights.get(one, 0.0) for one in targets])
    weights = weights if study.mixture.weights else np.ones(len(targets))
    low, high = np.array([bounds_of(study.mixture, name) for name in names]).T
    shares = np.array([own[name] for name in names])
    question = MixtureGoal(
        weights=weights / weights.sum(),
        low=low,
        high=np.minimum(high, mass),
        own=shares * mass / shares.sum(),
    )
    proposal = propose_mixture(runs, question)
    part = float(shares.sum()) / mass
    whole = {one.source: one.proposed.value * part for one in proposal.shares}
    proposed = rounded({**recipe.data.shares, **whole}, names, DECIMALS)
    read = _times_read(recipe, small, results[0], proposed)
    return MixtureResult(
        study=study,
        recipe=recipe,
        proposal=proposal,
        shares=proposed,
        epochs=read,
        notes=(
            *notes.of_proposal(proposal, question),
            *notes.of_reading(recipe, read, names, results),
            *notes.of_size(recipe, small),
        ),
    )


def _small(asked: StudyRequest, study: MixtureStudy) -> Recipe:
    """Read the recipe of the first run, and see that all read the same data.

    Raises:
        RecipeError: they do not.
    """
    folders = [asked.folder_of(point) for point in study.points]
    first, *others = [_data_of(folder) for folder in folders]
    for folder, key in zip(folders[1:], others, strict=True):
        if key != first:
            problem = f"{folder.name} read other data than {folders[0].name}"
            remedy = "losses compare on one text by one tokenizer: train it again"
            raise RecipeError("study", problem, remedy)
    return read_recipe(folders[0] / "recipe.json")


def _data_of(folder: Path) -> str:
    return read_record(folder / "data.json", DataRecord).key


def _own(recipe: Recipe, names: Sequence[str]) -> Shares:
    """Return the recipe's shares of the study's sources.

    Raises:
        RecipeError: it has none of its own, or not of all of them.
    """
    shares = dict(recipe.data.shares)
    missing = [name for name in names if not shares.get(name)]
    if missing:
        problem = f"{recipe.name} gives {', '.join(missing)} no share of its tokens"
        remedy = "choose a recipe whose data.shares has every source that the study varies"
        raise RecipeError("data.shares", problem, remedy)
    return {name: shares[name] for name in names}


def _runs(
    study: MixtureStudy,
    mixtures: Sequence[Shares],
    results: Sequence[Mapping[str, Any]],
    names: tuple[str, ...],
) -> MixtureRuns:
    """Set shares and held-out losses of the runs side by side.

    Raises:
        RecipeError: a run lacks the held-out loss of a source.
    """
    targets = tuple(mixtures[0])
    losses = [found["held_out"]["by_source"] for found in results]
    for one, mixture in zip(losses, mixtures, strict=True):
        missing = [name for name in targets if not isinstance(one.get(name), float)]
        if missing:
            problem = f"the run of {mixture} has no held-out loss of {', '.join(missing)}"
            raise RecipeError("study", problem, "raise data.held_out_fraction")
    return MixtureRuns(
        sources=names,
        targets=targets,
        shares=np.array([[one[name] for name in names] for one in mixtures]),
        losses=np.array([[one[name] for name in targets] for one in losses]),
        held_out=[study.is_held_out(point) for point in study.points],
    )


def _text_of(source: Source) -> tuple[object, ...]:
    return source.files, source.embedded, source.tokens, source.dataset


def _times_read(
    recipe: Recipe, small: Recipe, result: Mapping[str, Any], shares: Shares
) -> dict[str, float]:
    """Count how often the recipe would read each source until its shares change.

    Sizes are known of the sources whose text is that of the runs: what one of these has read
    over how often that was all of it.
    """
    later = recipe.data_phases[1:]
    samples = min([recipe.total_samples, *(first for first, _, _ in later)])
    tokens = samples * recipe.budget.sequence_length
    found = {}
    for name, one in result["mixture"].items():
        theirs, ours = small.data.sources.get(name), recipe.data.sources.get(name)
        if theirs is None or ours is None or _text_of(theirs) != _text_of(ours):
            continue
        if one["epochs"]:
            size = one["samples"] * small.budget.sequence_length / one["epochs"]
            found[name] = shares[name] * tokens / size
    return found
