"""A recipe in one screen: what follows from it, and what is not the default of ``conf/``."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

from rich.table import Table

from components.config.derived import DerivedNumbers
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipes_of
from components.config.recipe import Recipe
from components.terminal import console

Tree = Mapping[str, Any]
WIDTH = 100  # of a file or a pipe
# Elsewhere a part with more keys than FEW is counted, and what is beyond MOST words.
WRITTEN_OUT = {"model", "schedule", "parallelism", "phases", "from"}
FEW, MOST = 3, 6
DIGITS = 16  # of the fingerprint, enough to compare
SOURCES = 6  # of a mixture, the largest
SAID = {"name", "why", "home", "works", "published", "assumed", "scale", "data.shares"}
LONGEST_UNIT, LONGEST_TEXT = 16, 30
UNKNOWN = object()
MORE = "all of it: full=true, output=json; what it costs: action=plan; help: action=show --help"


def print_summary(recipe: Recipe, defaults: Tree, named: Collection[str] = ()) -> None:
    """Print the derived figures, what differs from ``defaults``, and how to see more.

    Of a long section the keys that the user ``named`` come first.
    """
    out, tree = console(width=WIDTH), recipe.model_dump(mode="json")
    out.print(f"{recipe.name}: {recipe.why}")
    chosen = f"scale={recipe.scale.name} cluster={recipe.cluster.name}"
    out.print(f"{chosen} (its home is {recipe.home})\n")
    differing = {
        section: _cut(section, differences(value, defaults.get(section, {}), section), named)
        for section, value in tree.items()
        if section not in SAID
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for title, rows in (
        ("DERIVED", _figures(recipe)),
        ("NOT DEFAULT", differing),
        ("BEHIND IT", {"published": _published(tree), "assumed": _assumed(tree)}),
    ):
        table.add_row(title)
        for name, said in rows.items():
            if said:
                table.add_row(name, said)
    out.print(table)
    out.print(f"\n{MORE}")


def _cut(section: str, differing: Iterable[str], named: Collection[str]) -> str:
    words = list(differing)
    if section in WRITTEN_OUT or len(words) <= MOST:
        return "  ".join(words)
    words.sort(key=lambda word: f"{section}.{word.partition('=')[0]}" not in named)
    return "  ".join([*words[:MOST], f"and {len(words) - MOST} more"])


def _figures(recipe: Recipe) -> dict[str, str]:
    derived, degrees = recipe.derived, recipe.parallelism
    counts = derived.parameters.model_dump()
    named = [f"{count:,} {name}" for name, count in counts.items() if count]
    if counts["active"] == counts["total"]:
        named.remove(f"{counts['active']:,} active")
    step = f"{derived.tokens_per_step:,} tokens, {derived.samples_per_step:,} samples"
    axes = ("data", "expert", "context", "tensor", "pipeline")
    layout = [f"{axis} {size}" for axis in axes if (size := getattr(degrees, axis)) > 1]
    ranks = f"{' x '.join(layout)} = {derived.ranks:,} ranks" if layout else "1 rank"
    per_token = derived.flops_per_token
    return {
        "parameters": ", ".join(named),
        "tokens": f"{recipe.budget.total_tokens:,} in {derived.steps:,} steps of {step}",
        "start": start_line(recipe),
        "phases": "\n".join(phase_lines(recipe)),
        "layout": f"{ranks}, {derived.microbatches_per_step} microbatches a step and rank, "
        f"layers of each stage: {layers_text(derived)}",
        "FLOPs a token": f"{per_token.full:,} full attention, {per_token.causal:,} causal",
        "mixture": "\n".join(mixture_lines(recipe, most=SOURCES)).replace("mixture, ", ""),
        "fingerprint": compute_fingerprint(recipe)[:DIGITS],
    }


def start_line(recipe: Recipe) -> str:
    """Describe the checkpoint that a run starts from; empty without one."""
    if (start := recipe.start) is None:
        return ""
    steps = recipe.derived.steps - recipe.first_step
    return start.summary + (f": {steps:,} steps are its own" if start.goes_on else "")


def phase_lines(recipe: Recipe) -> Iterator[str]:
    """Say of each phase of a run what it takes, where there are any."""
    for name, one in recipes_of(recipe).items() if recipe.phases else ():
        span, derived, degrees = one.span, one.derived, one.parallelism
        axes = ("data", "expert", "context", "tensor", "pipeline")
        layout = " x ".join(f"{axis} {n}" for axis in axes if (n := getattr(degrees, axis)) > 1)
        batch = f"{derived.samples_per_step:,} samples of {span.sequence_length:,} tokens"
        steps = f"{len(span.steps):,} steps of {batch}, {layout or '1 rank'}"
        yield f"{name or 'first'}, tokens {span.first_token:,} to {span.end_token:,}: {steps}"


def mixture_lines(recipe: Recipe, most: int | None = None) -> Iterator[str]:
    """Describe what is drawn from which token on, and what no source may exceed.

    Of many sources the ``most`` largest are named.
    """
    mixture, token = recipe.data.mixture, recipe.clock.token_at
    rule = "in natural proportions"
    if not isinstance(mixture, str):
        rule = f"by tokens ** (1 / {mixture.temperature:g})"
    starts = [first for first, _, _ in recipe.data_phases]
    ends = pairwise([*starts, recipe.total_samples])
    for (_, _, shares), (start, end) in zip(recipe.data_phases, ends, strict=True):
        largest_first = sorted(shares.items(), key=lambda one: -one[1])
        said = ", ".join(f"{name} {share:.4%}" for name, share in largest_first[:most])
        if most is not None and shares.keys() - dict(largest_first[:most]):
            said += f" and {len(shares) - most} more"
        said = said or f"{rule}; action=prepare finds the tokens and prints the shares"
        yield f"mixture, tokens {token(start):,} to {token(end):,}: {said}"
    limits = [
        f"{name} {source.most_epochs} times"
        for name, source in recipe.data.sources.items()
        if source.most_epochs is not None
    ]
    if limits:
        yield f"read at most: {', '.join(limits)}; what is beyond is {recipe.data.surplus}"


def layers_text(derived: DerivedNumbers) -> str:
    """Write equal neighbours once: 5, 10 x 6, 5."""
    runs = [(count, len(list(equal))) for count, equal in groupby(derived.layers_by_stage)]
    return ", ".join(f"{n} x {count}" if n > 1 else f"{count}" for count, n in runs)


def differences(here: Tree, defaults: Tree, section: str, path: str = "") -> Iterator[str]:
    """Write each value that is not the default, as the command line takes it."""
    for key, value in here.items():
        default, name = defaults.get(key, UNKNOWN), f"{path}{key}"
        none = value == 0 and default == "auto"  # spare nodes, where a profile keeps none
        if none or f"{section}.{name}" in SAID:
            continue
        if isinstance(value, Mapping) and value:
            below = default if isinstance(default, Mapping) else {}
            inner = list(differences(value, below, section, f"{name}."))
            written = section in WRITTEN_OUT or len(inner) <= FEW
            yield from inner if written else [f"{name}: {_counted(value)}"]
        elif key == "_target_" and value != default:
            kind = str(value).rpartition(".")[2]
            yield f"{path.removesuffix('.')}: {kind}" if path else kind
        elif key not in {"_target_", "_partial_"} and value != default:
            yield f"{name}={written_value(value)}"


def _counted(part: Tree) -> str:
    names = list(part)
    more = f" and {len(names) - FEW:,} more" if names[FEW:] else ""
    return ", ".join(names[:FEW]) + more


def written_value(value: Any) -> str:
    """Write a value as YAML has it, a number with its groups of digits, a long text cut."""
    if isinstance(value, list):
        inner = any(isinstance(item, list | dict) for item in value)
        return f"[{len(value)} items]" if inner else f"[{','.join(map(written_value, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return f"{value:_}"
    if not isinstance(value, str):
        return "{}"
    return (value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}...") or "''"


def _published(tree: Tree) -> str:
    return ", ".join(
        f"{name} {_figure(item['value'])}"
        + (
            ""
            if item["unit"] in name or len(item["unit"]) > LONGEST_UNIT
            else f" {item['unit']}"
        )
        for name, item in tree["published"].items()
    )


def _assumed(tree: Tree) -> str:
    figures = (f"{name} {_figure(item['value'])}" for name, item in tree["assumed"].items())
    said = ", ".join(figures)
    return f"(not in the sources) {said}" if said else ""


def _figure(value: Any) -> str:
    if isinstance(value, dict):
        return f"of {len(value)} values"
    return f"{value:,}" if isinstance(value, int) else str(value)
