"""Tables of a proposed mixture: shares, losses by source, laws, and every run."""

from collections.abc import Mapping

from components.report import numbers
from components.report.prediction.tables import between
from components.report.tables import Grid
from components.scaling.mixture import MixtureProposal


def shares_grid(found: MixtureProposal, epochs: Mapping[str, float]) -> Grid:
    """Lay out the shares: the recipe's own, what was tried, what is proposed."""
    rows = [
        (
            one.source,
            f"{one.own:.4f}",
            f"{one.tried[0]:.4f} to {one.tried[1]:.4f}",
            f"{one.proposed.value:.4f}",
            f"{one.proposed.low:.4f}",
            f"{one.proposed.high:.4f}",
            numbers.written(epochs.get(one.source), ".2f"),
        )
        for one in found.shares
    ]
    columns = ("source", "own share", "tried", "proposed", "5 % below", "95 % below", "read")
    return Grid(columns=columns, rows=rows)


def losses_grid(found: MixtureProposal) -> Grid:
    """Lay out each source's loss by its law, and how far that is off."""
    rows = [
        (
            one.source,
            numbers.loss(one.own),
            numbers.loss(one.proposed),
            f"{one.left_out:.2%}",
            f"{one.left_out_worst:+.2%}",
            f"{one.held_out:+.2%}",
            f"{one.floor:.3f}" if found.with_floor else numbers.ABSENT,
            *(f"{one.slopes[share.source]:+.3f}" for share in found.shares),
        )
        for one in found.laws
    ]
    slopes = (f"by {share.source}" for share in found.shares)
    errors = ("left out, off by", "at worst", "held out, off by")
    columns = ("held-out loss of", "own", "proposed", *errors, "floor", *slopes)
    return Grid(columns=columns, rows=rows)


def mixture_rows(found: MixtureProposal) -> list[tuple[str, str]]:
    """Return label and text of the weighted loss and of the law that it comes from."""
    count, sources = len(found.runs), len(found.shares)
    fitted = sum(not one.held_out for one in found.runs)
    form = "c + exp(sum of t_j r_j)" if found.with_floor else "exp(sum of t_j r_j)"
    constants = sources + found.with_floor
    return [
        ("weighted loss, own mixture", between(found.own, ".4f")),
        ("weighted loss, proposed", between(found.proposed, ".4f")),
        ("gain, nats", between(found.gain, "+.4f")),
        ("law", f"{form}: {constants} constants a source of {fitted} runs, {count} in all"),
    ]


def mixture_runs_grid(found: MixtureProposal) -> Grid:
    """Lay out each run beside what the laws say of it; a held-out one is no part of the fit."""
    rows = [
        (
            "held out" if one.held_out else "own" if place == 0 else "fitted",
            *(f"{one.shares[share.source]:.4f}" for share in found.shares),
            numbers.loss(one.loss),
            numbers.loss(one.predicted),
            f"{one.error:+.2%}",
        )
        for place, one in enumerate(found.runs)
    ]
    names = (share.source for share in found.shares)
    columns = ("run", *names, "loss", "by the laws", "off by")
    return Grid(columns=columns, rows=rows)
