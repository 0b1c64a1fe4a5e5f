"""What a miniature reads: a recipe's own text, or what is embedded where there is none.

Published corpora cannot be shipped. Small embedded texts stand in for them, and two larger
ones, the carriers, take most tokens. A recipe whose text is its own (files, token files, data
sets) reads that, with carriers beside it only where it would be read more than `MOST_EPOCHS`
times.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from components.config.recipe import Recipe
from components.config.schema.sections import Carrier, Shrink
from components.config.user_overrides import Tree, UserOverrides

OWN = ("files", "tokens", "dataset")
# So often was nearly as good as new text (Muennighoff et al. 2023, arXiv 2305.16264).
MOST_EPOCHS = 4
# Rough: English has more bytes a token, other scripts and small vocabularies have fewer.
TEXT_BYTES, ID_BYTES = 4, 2
COMPRESSED, COMPRESSION = (".gz", ".zst", ".parquet"), 3
MOST_FILES = 1_000  # that are looked at; whoever names more has text enough
SIGNS = frozenset("*?[")


def stand_in(tree: Tree, rule: Shrink, named: UserOverrides, *, reads_files: bool) -> None:
    """Give each source without text its embedded one; those without any leave.

    What carriers are mixed in stays in ``scale.shrink.carriers``, with their shares. A
    recipe's own text is enough unless it is looked at.
    """
    data: Any = tree["data"]
    sources = data["sources"]
    standing = [
        name for name, one in sources.items() if not _has_text(one) and one.get("stand_in")
    ]
    for name in standing:
        sources[name]["embedded"] = sources[name]["stand_in"]
        if not named.covers(f"data.sources.{name}.most_epochs"):
            sources[name].pop("most_epochs", None)  # a limit of the real text
    usable = [name for name, source in sources.items() if _has_text(source)]
    own = not standing and any(_is_own(sources[name]) for name in usable)
    if not own:
        named.put(tree, "data.held_out_fraction", rule.held_out_fraction)
    carriers: Mapping[str, Carrier] = {}
    if data["mixture"] != "given":
        data["sources"] = {name: sources[name] for name in usable}
    elif not named.covers("data.shares"):
        carriers = rule.carriers
        if own:
            carriers = _carriers(tree, usable, rule) if reads_files else {}
        _mix(data, usable, carriers, named)
    kept = {name: carrier.model_dump() for name, carrier in carriers.items()}
    tree["scale"]["shrink"]["carriers"] = kept


def _mix(
    data: Any, usable: list[str], carriers: Mapping[str, Carrier], named: UserOverrides
) -> None:
    """Let usable sources share what carriers leave, in the recipe's proportions."""
    sources, phases = data["sources"], data["phases"]
    shared = dict.fromkeys(n for one in (data, *phases.values()) for n in one["shares"])
    kept = [name for name in shared if name in usable]
    if not carriers and len(kept) == len(shared):
        return
    unshared = [name for name in sources if name not in shared]  # the user's; refused later
    data["sources"] = {name: sources[name] for name in [*kept, *unshared]}
    shares = _carrier_shares(data["sources"], kept, carriers)
    ours = [one for name, one in phases.items() if not named.covers(f"data.phases.{name}")]
    for section in (data, *ours):
        section["shares"] = _with_carriers(section["shares"], kept, shares)


def _carrier_shares(
    sources: Any, usable: list[str], carriers: Mapping[str, Carrier]
) -> dict[str, float]:
    """Give each carrier's share by the source that reads its text, a new one if none does."""
    shares = {}
    for name, carrier in carriers.items():
        reading = [one for one in usable if sources[one].get("embedded") == carrier.embedded]
        if not reading:
            sources[name] = {"files": [], "embedded": carrier.embedded, "stand_in": None}
        shares[reading[0] if reading else name] = carrier.share
    return shares


def _with_carriers(
    shares: Mapping[str, float], usable: list[str], carriers: Mapping[str, float]
) -> dict[str, float]:
    """Let usable sources share what carriers leave; carriers share all if there are none."""
    kept = {name: share for name, share in shares.items() if name in usable}
    carried, total = sum(carriers.values()), sum(kept.values())
    scale = (1 - carried) / total if total else 0
    given = {name: share * scale for name, share in kept.items()}
    for name, share in carriers.items():
        given[name] = given.get(name, 0) + (share if total else share / carried)
    return given


def _has_text(source: Any) -> bool:
    return bool(source.get("embedded")) or _is_own(source)


def _is_own(source: Any) -> bool:
    return any(source.get(kind) for kind in OWN)


def _carriers(tree: Tree, usable: list[str], rule: Shrink) -> dict[str, Carrier]:
    """Give carriers what a recipe's own text lacks, at most what they have without one."""
    data: Any = tree["data"]
    most = sum(carrier.share for carrier in rule.carriers.values())
    total = tree["budget"]["total_tokens"]
    sources = [data["sources"][name] for name in usable]
    untrained = any(one.get("tokens") for one in sources) and data["tokenizer_folder"] == "none"
    lacking = 1 - MOST_EPOCHS * _own_tokens(sources, total / MOST_EPOCHS) / total
    carried = min(most, round(lacking, 2))
    if carried <= 0 or untrained:  # nobody could tokenize the carriers
        return {}
    return {
        name: Carrier(embedded=one.embedded, share=round(one.share * carried / most, 6))
        for name, one in rule.carriers.items()
    }


def _own_tokens(sources: list[Any], enough: float) -> float:
    """Guess from sizes on disk, up to ``enough``; what cannot be looked at is enough."""
    found = 0.0
    for tokens in (one for source in sources for one in _guesses(source)):
        found += tokens
        if found >= enough:
            break
    return min(found, enough)


def _guesses(source: Any) -> Iterator[float]:
    """Yield the tokens of one file after the other; infinity if there is no telling."""
    if source.get("dataset"):
        yield math.inf
    patterns = [*source.get("files", ()), *(f"{one}.bin" for one in source.get("tokens", ()))]
    unit = ID_BYTES if source.get("tokens") else TEXT_BYTES
    for pattern in patterns:
        try:
            files = list(islice(_expand(Path(pattern)), MOST_FILES + 1))
            sizes = [_text_bytes(file) / unit for file in files]
        except (OSError, ValueError, NotImplementedError):
            sizes = []
        yield math.inf if not sizes or len(sizes) > MOST_FILES else sum(sizes)


def _expand(pattern: Path) -> Iterator[Path]:
    if pattern.exists() or not SIGNS & set(str(pattern)):
        yield pattern
    else:
        anchor = Path(pattern.anchor)
        yield from anchor.glob(str(pattern.relative_to(anchor)))


def _text_bytes(file: Path) -> int:
    factor = COMPRESSION if file.suffix in COMPRESSED else 1
    return file.stat().st_size * factor


def note_of_carriers(recipe: Recipe) -> str | None:
    """Say what was mixed into a recipe's own text and how to do without; else nothing."""
    data, shrink = recipe.data, recipe.scale.shrink
    own = [name for name, one in data.sources.items() if any(getattr(one, k) for k in OWN)]
    standing = any(one.embedded and one.stand_in for one in data.sources.values())
    if isinstance(shrink, str) or not shrink.carriers or not own or standing:
        return None
    added = ", ".join(f"{one.share:.1%} {name}" for name, one in shrink.carriers.items())
    return (
        f"data: {recipe.budget.total_tokens:,} tokens would read the text of {', '.join(own)} "
        f"more than {MOST_EPOCHS} times, so {added} are mixed in; data.shares={{...}} or "
        "scale=full leaves them out"
    )
