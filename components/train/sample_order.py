"""Sample order of a run, from its recipe and the prepared data. Works without torch."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from pathlib import Path

from components.config.recipe import Recipe
from components.config.step_clock import SampleCut
from components.data.manifest import Manifest
from components.data.mixture import limit_repeats, tempered_shares, windows_per_source
from components.data.order import Phase, SampleOrder
from components.data.packing import open_rows
from components.data.run_order import Cut, RunOrder, split_at


def make_order(recipe: Recipe, manifest: Manifest, folder: Path) -> RunOrder:
    """Return the sample order: the shares of every phase from the tokens or packed rows.

    Raises RecipeError if a source has no complete window, would be repeated too often, or is
    not packed.
    """
    tokens = {name: manifest.sources[name].train_tokens for name in recipe.data.source_names}
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
    cuts = recipe.token_clock.list_sample_cuts()
    samples = [_samples(cut, manifest, folder, recipe.data.source_names) for cut in cuts]
    parts = split_at(phases, [cut.first_sample for cut in cuts])
    limited = limit_repeats(
        [
            Phase(cut.first_sample + phase.first_sample, phase.shares, phase.path)
            for cut, part in zip(cuts, parts, strict=True)
            for phase in part
        ],
        samples=samples[0],
        most_epochs=limits,
        total_samples=recipe.total_samples,
        on_exhausted=recipe.data.on_exhausted,
        weights=[
            Fraction(cut.sequence_length, cuts[0].sequence_length)
            for cut, part in zip(cuts, parts, strict=True)
            for _ in part
        ],
    )
    remaining, run_cuts = iter(limited), list[Cut]()
    epochs: dict[str, int] = {}
    ends = chain((cut.first_sample for cut in cuts[1:]), [recipe.total_samples])
    for (first, length, _), end, sizes, part in zip(cuts, ends, samples, parts, strict=True):
        own = [Phase(phase.first_sample, next(remaining).shares, phase.path) for phase in part]
        order = SampleOrder(
            phases=own, samples=sizes, seed=recipe.budget.seed, first_epochs=epochs
        )
        run_cuts.append(Cut(first, length, order))
        epochs = order.epochs_after(end - first)
    return RunOrder(run_cuts)


def _samples(
    cut: SampleCut, manifest: Manifest, folder: Path, names: Sequence[str]
) -> dict[str, int]:
    """Return the number of samples of each source for a ``cut``: windows or packed rows."""
    length = cut.sequence_length
    if not cut.packed:
        windows = windows_per_source(manifest, length)
        return {name: windows[name] for name in names}
    return {
        name: len(open_rows(folder, name, manifest.sources[name], length=length))
        for name in names
    }
