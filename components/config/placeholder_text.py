"""Placeholder text: the data sources of a miniature, with embedded text for missing corpora.

Published corpora cannot be shipped. Small embedded texts replace them, and two larger embedded
texts, the filler, get most of the tokens. A recipe with its own text (files, token files,
data sets) and no placeholder reads only its own text.
"""

from collections.abc import Mapping
from typing import Any

from components.config.schema.sections import FillerText, Shrink
from components.config.user_overrides import MutableTree, UserOverrides

OWN = ("files", "tokens", "dataset")


def use_placeholder_text(tree: MutableTree, rule: Shrink, named: UserOverrides) -> None:
    """Set the embedded text of each source without text; remove sources without either.

    ``scale.shrink.filler`` keeps only the texts that are mixed in.
    """
    data: Any = tree["data"]
    sources = data["sources"]
    has_own = any(source.get(kind) for source in sources.values() for kind in OWN)
    for name, source in sources.items():
        if not _has_text(source) and source.get("placeholder"):
            has_own, source["embedded"] = False, source["placeholder"]
            if not named.is_overridden(f"data.sources.{name}.most_epochs"):
                source.pop("most_epochs", None)  # a limit of the real text
    usable = [name for name, source in sources.items() if _has_text(source)]
    if not has_own:
        named.set_default(tree, "data.held_out_fraction", rule.held_out_fraction)
    filler: Mapping[str, FillerText] = {}
    if data["mixture"] != "given":
        data["sources"] = {name: sources[name] for name in usable}
    elif not named.is_overridden("data.shares"):
        filler = {} if has_own else rule.filler
        _mix(data, usable, filler, named)
    mixed = {name: text.model_dump() for name, text in filler.items()}
    tree["scale"]["shrink"]["filler"] = mixed


def _has_text(source: Any) -> bool:
    return any(source.get(kind) for kind in ("embedded", *OWN))


def _mix(
    data: Any, usable: list[str], filler: Mapping[str, FillerText], named: UserOverrides
) -> None:
    """Set the shares: fillers get theirs, usable sources the rest in the same proportions."""
    sources, phases = data["sources"], data["phases"]
    shared = dict.fromkeys(n for section in (data, *phases.values()) for n in section["shares"])
    readable = [name for name in shared if name in usable]
    if not filler and len(readable) == len(shared):
        return
    unshared = [name for name in sources if name not in shared]  # the user's; refused later
    data["sources"] = {name: sources[name] for name in [*readable, *unshared]}
    added = {}  # filler shares, by the source that reads the text
    for name, text in filler.items():
        reading = [
            source for source in readable if sources[source].get("embedded") == text.embedded
        ]
        if not reading:
            embedded = text.embedded
            data["sources"][name] = {"files": [], "embedded": embedded, "placeholder": None}
        added[reading[0] if reading else name] = text.share
    ours = [
        phase
        for name, phase in phases.items()
        if not named.is_overridden(f"data.phases.{name}")
    ]
    for section in (data, *ours):
        section["shares"] = _with_filler(section["shares"], readable, added)


def _with_filler(
    shares: Mapping[str, float], usable: list[str], filler: Mapping[str, float]
) -> dict[str, float]:
    """Return the shares of usable sources and filler, or of filler alone if none is usable."""
    own = {name: share for name, share in shares.items() if name in usable}
    filled, total = sum(filler.values()), sum(own.values())
    scale = (1 - filled) / total if total else 0
    mixed = {name: share * scale for name, share in own.items()}
    for name, share in filler.items():
        mixed[name] = mixed.get(name, 0) + (share if total else share / filled)
    return mixed
