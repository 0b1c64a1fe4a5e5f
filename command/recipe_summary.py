"""Summary of a recipe on one screen: derived numbers, and values that differ from ``conf/``."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

from rich.table import Table

from components.config.derived import DerivedNumbers
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipes_of
from components.config.recipe import Recipe
from components.terminal import create_console

JsonTree = Mapping[str, Any]
WIDTH = 100  # of a file or a pipe
# Other parts with more than FEW keys are abbreviated, and at most MOST words are printed.
WRITTEN_OUT = {"model", "schedule", "parallelism", "phases", "from"}
FEW, MOST = 3, 6
DIGITS = 16  # of the fingerprint, enough to compare
SOURCES = 6  # of a mixture, the largest
SHOWN_KEYS = {
    *("name", "description", "reference_cluster", "citations"),
    *("published", "assumed", "scale", "data.shares"),
}
LONGEST_TEXT = 30
UNKNOWN = object()
MORE = "all keys: full=true or output=json; cost: action=plan; help: action=show --help"


def print_summary(recipe: Recipe, defaults: JsonTree, named: Collection[str] = ()) -> None:
    """Print the derived figures, the differences from ``defaults``, and commands for more.

    In a long section the keys that the user ``named`` come first.
    """
    out, tree = create_console(width=WIDTH), recipe.model_dump(mode="json")
    out.print(f"{recipe.name}: {recipe.description}")
    chosen = f"scale={recipe.scale.name} cluster={recipe.cluster.name}"
    out.print(f"{chosen} (reference cluster: {recipe.reference_cluster})\n")
    differing = {
        section: _cut(
            section, iter_differences(value, defaults.get(section, {}), section), named
        )
        for section, value in tree.items()
        if section not in SHOWN_KEYS
    }
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    sources = {name: _figure_line(tree[name]) for name in ("published", "assumed")}
    if sources["assumed"]:
        sources["assumed"] = f"(not in the sources) {sources['assumed']}"
    for title, rows in (
        ("DERIVED", _figures(recipe)),
        ("NOT DEFAULT", differing),
        ("SOURCES", sources),
    ):
        table.add_row(title)
        for name, row in rows.items():
            if row:
                table.add_row(name, row)
    out.print(table)
    out.print(f"\n{MORE}")


def _cut(section: str, differing: Iterable[str], named: Collection[str]) -> str:
    words = list(differing)
    if section in WRITTEN_OUT or len(words) <= MOST:
        return "  ".join(words)
    words.sort(key=lambda word: f"{section}.{word.partition('=')[0]}" not in named)
    return "  ".join([*words[:MOST], f"and {len(words) - MOST} more"])


def _figures(recipe: Recipe) -> dict[str, str]:
    derived = recipe.derived_numbers
    counts = derived.parameters.model_dump()
    named = [f"{count:,} {name}" for name, count in counts.items() if count]
    if counts["active"] == counts["total"]:
        named.remove(f"{counts['active']:,} active")
    step = f"{derived.tokens_per_step:,} tokens, {derived.samples_per_step:,} samples"
    ranks = _layout(recipe) + (f" = {derived.ranks:,} ranks" if derived.ranks > 1 else "")
    per_token = derived.flops_per_token
    return {
        "parameters": ", ".join(named),
        "tokens": f"{recipe.budget.total_tokens:,} in {derived.steps:,} steps of {step}",
        "start": start_line(recipe),
        "phases": "\n".join(phase_lines(recipe)),
        "layout": f"{ranks}, {derived.microbatches_per_step} microbatches per step and rank, "
        f"layers per stage: {layers_text(derived)}",
        "FLOPs/token": f"{per_token.full:,} full attention, {per_token.causal:,} causal",
        "mixture": "\n".join(mixture_lines(recipe, most=SOURCES)).replace("mixture, ", ""),
        "fingerprint": compute_fingerprint(recipe)[:DIGITS],
    }


def _layout(recipe: Recipe) -> str:
    degrees = recipe.parallelism.used_axes
    axes = ("data", "expert", "context", "tensor", "pipeline")
    return " x ".join(f"{axis} {degrees[axis]}" for axis in axes if axis in degrees) or "1 rank"


def start_line(recipe: Recipe) -> str:
    """Describe the checkpoint that a run starts from. Empty if there is none."""
    if (start := recipe.start) is None:
        return ""
    steps = recipe.derived_numbers.steps - recipe.first_step
    return start.start_summary + (f"; {steps:,} steps in this run" if start.goes_on else "")


def phase_lines(recipe: Recipe) -> Iterator[str]:
    """Describe each phase of a run: its tokens, steps, batch and layout."""
    for name, phase_recipe in recipes_of(recipe).items() if recipe.phases else ():
        span, derived = phase_recipe.phase_span, phase_recipe.derived_numbers
        batch = f"{derived.samples_per_step:,} samples of {span.sequence_length:,} tokens"
        steps = f"{len(span.step_range):,} steps of {batch}, {_layout(phase_recipe)}"
        yield f"{name or 'first'}, tokens {span.first_token:,} to {span.end_token:,}: {steps}"


def mixture_lines(recipe: Recipe, most: int | None = None) -> Iterator[str]:
    """Describe the mixture of each token range, and the epoch limits of sources.

    With ``most``, only that many of the largest sources are named.
    """
    mixture, token = recipe.data.mixture, recipe.token_clock.token_at
    rule = "in proportion to the tokens"
    if not isinstance(mixture, str):
        rule = f"by tokens ** (1 / {mixture.temperature:g})"
    starts = [first for first, _, _ in recipe.data_phases]
    ends = pairwise([*starts, recipe.total_samples])
    for (_, _, shares), (start, end) in zip(recipe.data_phases, ends, strict=True):
        largest_first = sorted(shares.items(), key=lambda pair: -pair[1])
        shares_text = ", ".join(f"{name} {share:.4%}" for name, share in largest_first[:most])
        if most is not None and shares.keys() - dict(largest_first[:most]):
            shares_text += f" and {len(shares) - most} more"
        shares_text = (
            shares_text or f"{rule}; action=prepare counts the tokens and prints the shares"
        )
        yield f"mixture, tokens {token(start):,} to {token(end):,}: {shares_text}"
    limits = [
        f"{name} {source.most_epochs} times"
        for name, source in recipe.data.sources.items()
        if source.most_epochs is not None
    ]
    if limits:
        yield f"read at most: {', '.join(limits)}; then {recipe.data.on_exhausted}"


def layers_text(derived: DerivedNumbers) -> str:
    """Write runs of equal layer counts once: 5, 10 x 6, 5."""
    runs = [(count, len(list(equal))) for count, equal in groupby(derived.layers_by_stage)]
    return ", ".join(f"{n} x {count}" if n > 1 else f"{count}" for count, n in runs)


def iter_differences(
    here: JsonTree, defaults: JsonTree, section: str, path: str = ""
) -> Iterator[str]:
    """Yield each value that differs from its default, in command-line form."""
    for key, value in here.items():
        default, name = defaults.get(key, UNKNOWN), f"{path}{key}"
        none = value == 0 and default == "auto"  # spare nodes, if the profile has none
        if none or f"{section}.{name}" in SHOWN_KEYS:
            continue
        if isinstance(value, Mapping) and value:
            below = default if isinstance(default, Mapping) else {}
            inner = list(iter_differences(value, below, section, f"{name}."))
            written = section in WRITTEN_OUT or len(inner) <= FEW
            yield from inner if written else [f"{name}: {_counted(value)}"]
        elif key == "_target_" and value != default:
            kind = str(value).rpartition(".")[2]
            yield f"{path.removesuffix('.')}: {kind}" if path else kind
        elif key not in {"_target_", "_partial_"} and value != default:
            yield f"{name}={written_value(value)}"


def _counted(part: JsonTree) -> str:
    names = list(part)
    more = f" and {len(names) - FEW:,} more" if names[FEW:] else ""
    return ", ".join(names[:FEW]) + more


def written_value(value: Any) -> str:
    """Write a value as YAML, with underscores between digit groups, and cut long texts."""
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


def _figure_line(items: Mapping[str, Mapping[str, Any]]) -> str:
    """Write published or assumed values, each with its name."""
    figures = []
    for name, item in items.items():
        value = item["value"]
        text = f"{value:,}" if isinstance(value, int) else str(value)
        text = f"({len(value)} values)" if isinstance(value, dict) else text
        figures.append(f"{name} {text}")
    return ", ".join(figures)
