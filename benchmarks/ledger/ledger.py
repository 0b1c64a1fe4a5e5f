"""Write the ledger: published, predicted, rehearsed, proved and measured figures of recipes.

    python -m benchmarks.ledger.ledger

Four pages have tables from the same rows: `recipes/README.md` verdicts and plans,
`docs/ledger.md` all rows, `docs/parity.md` layouts, `README.md` counts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.entry import run_script
from benchmarks.generated_section import split_section, table_line
from benchmarks.ledger.proofs import (
    FILES,
    GIB,
    NOT_DONE,
    PARITY,
    LedgerEntry,
    StoredProof,
    read_entries,
)
from benchmarks.ledger.script_values import script_cell
from command.arguments import ROOT
from components.config.schema.sections import PublishedFigure
from components.planner.result import ComparedFigure
from components.report.numbers import format_significant
from components.report.plan_tables import published_sheet

PAGE, DETAILS, FRONT, LAYOUTS = (
    ROOT / name
    for name in ("recipes/README.md", "docs/ledger.md", "README.md", "docs/parity.md")
)
PARTS = {
    PAGE: ("verdicts", "runs", "plans"),
    DETAILS: ("sections",),
    FRONT: ("counts",),
    LAYOUTS: ("layouts",),
}
VERDICTS = """\
| Recipe | Script | Published | Predicted | Dry run | Parity | Miniature | Measured |
|---|---|---|---|---|---|---|---|
"""
HEAD_OF_RUNS = """\
| Recipe | Home | Parameters | Tokens | Steps | Ranks |
|---|---|---|---|---|---|
"""
HEAD_OF_PLANS = """\
| Recipe | Cluster | Nodes | Memory, GiB | Verdict | Step | MFU, full | Hours |
|---|---|---:|---:|---|---:|---:|---:|
"""
HEAD_OF_LAYOUTS = """\
| Recipe | Layout | Ranks | Loss | Gradient | Weight | Float32 loss | Seconds | |
|---|---|---:|---:|---:|---:|---:|---:|---|
"""
NAMES = re.compile(r"`(\w+)`")
_PUBLISHED = TypeAdapter(dict[str, ComparedFigure | PublishedFigure])

DIGITS = 6  # of a fingerprint, as in a lock's name
PROOFS = """\
| | Finding | Recipe | Machine | Versions | Date |
|---|---|---|---|---|---|
"""
PUBLISHED = """\
| Published | Value | Unit | Source | Planned | Difference |
|---|---:|---|---|---:|---:|
"""


def recipe_section(entry: LedgerEntry) -> str:
    """Return the section of one recipe."""
    return (
        f"## {entry.name}\n\n{_headline(entry)}\n\n"
        f"{PROOFS}{''.join(_proof_rows(entry))}\n"
        f"{PUBLISHED}{''.join(_published_rows(entry))}"
    )


def _headline(entry: LedgerEntry) -> str:
    recipe, derived = entry.composed["recipe"], entry.composed["derived"]
    works = ", ".join(f"`{name}`" for name in recipe["citations"])
    return (
        f"{recipe['description']} {derived['parameters']['total']:,} parameters, "
        f"{derived['ranks']:,} ranks, {derived['steps']:,} steps; works: {works or 'none'}."
    )


def _proof_rows(entry: LedgerEntry) -> Iterator[str]:
    yield table_line(_plan_cells(entry))
    for kind in FILES:
        proofs = entry.proofs_of(kind)
        yield from (table_line(_proof_cells(proof)) for proof in proofs)
        if not proofs:
            yield table_line([kind, NOT_DONE[kind], "", "", "", ""])


def _plan_cells(entry: LedgerEntry) -> list[str]:
    memory, time = entry.plan["memory"], entry.plan["time"]
    if (seconds := time["step_seconds"]) is None:
        reason = entry.plan["missing"][0]  # the cause of a missing step time comes first
        step = f"no step time: {reason['problem']} (`{reason['figure']}`)"
    else:
        step = f"{seconds:.3g} s per step, MFU {time['mfu_full']:.0%}"
    peak, usable = (memory[f"{key}_bytes"] / GIB for key in ("peak", "usable"))
    finding = f"{step}; {peak:.1f} of {usable:.1f} GiB, {memory['verdict'].replace('_', ' ')}"
    nodes = (
        f"{entry.plan['layout']['nodes']:,} nodes of {entry.plan['cluster']}, by its profile"
    )
    return [
        "plan",
        finding,
        _fingerprint_cell("full", entry.composed["fingerprint"]),
        nodes,
        "no package",
        "this commit",
    ]


def _proof_cells(proof: StoredProof) -> list[str]:
    row = proof.row
    recipe = _fingerprint_cell(row["scale"], row["fingerprint"]["mathematics"])
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    machine = row["machine"]
    processor = f"{machine['processor']}, {machine['cores']} cores"
    stale = "; **stale**: the recipe has changed since" if proof.stale else ""
    return [proof.kind, proof.finding + stale, recipe, processor, versions, row["date"]]


def _fingerprint_cell(scale: str, fingerprint: str) -> str:
    return f"{scale} `{fingerprint[:DIGITS]}`"


def _published_rows(entry: LedgerEntry) -> Iterator[str]:
    published = _PUBLISHED.validate_python(entry.plan["published"])
    for row, item in zip(published_sheet(published).rows, published.values(), strict=True):
        name, value, unit, planned, difference = row
        yield table_line([name, value, unit, item.source, planned, difference])


def write_pages() -> None:
    """Write the generated tables into their pages."""
    for page, text in render_pages().items():
        page.write_text(text, "utf-8")


def render_pages() -> dict[Path, str]:
    """Return the current text of each page."""
    entries = read_entries()
    pages = {}
    for page, parts in PARTS.items():
        text = page.read_text("utf-8")
        for part in parts:
            text = _replace_table(text, part, entries)
        pages[page] = text
    return pages


def _replace_table(text: str, part: str, entries: Sequence[LedgerEntry]) -> str:
    head, section, tail = split_section(text, part, "make golden")
    if part == "counts":
        return f"{head}{count_proofs(section, entries)}{tail}"
    if part == "sections":
        return head + "\n".join(map(recipe_section, entries)) + tail
    columns, rows_of = TABLES[part]
    rows = [row for entry in entries for row in rows_of(entry)]
    return f"{head}{columns}{''.join(map(table_line, rows))}{tail}"


def _verdict_row(entry: LedgerEntry) -> Iterator[Sequence[str]]:
    seconds = entry.plan["time"]["step_seconds"]
    step = "no step" if seconds is None else f"{seconds:.3g} s"
    yield [
        f"[`{entry.name}`](../docs/ledger.md#{entry.name})",
        script_cell(entry.name),
        f"{len(entry.plan['published'])} figures",
        f"{step}, {entry.plan['memory']['verdict'].replace('_', ' ')}",
        *(proof_cell(entry, kind) for kind in FILES),
    ]


def proof_cell(entry: LedgerEntry, kind: str) -> str:
    """Summarize the proofs of one kind."""
    proofs = entry.proofs_of(kind)
    current = [proof for proof in proofs if not proof.stale]
    if not proofs:
        return NOT_DONE[kind]
    if not current:
        return f"stale, {max(proof.row['date'] for proof in proofs)}"
    verdicts = ", ".join(dict.fromkeys(proof.verdict for proof in current))
    count = f", {len(current)} layouts" if len(current) > 1 else ""
    stale = f"; {len(proofs) - len(current)} stale" if len(proofs) > len(current) else ""
    return verdicts + count + stale


def _run_row(entry: LedgerEntry) -> Iterator[Sequence[str]]:
    recipe, derived = entry.composed["recipe"], entry.composed["derived"]
    total, active = (derived["parameters"][key] for key in ("total", "active"))
    counts = [recipe["budget"]["total_tokens"], derived["steps"], derived["ranks"]]
    yield [
        *(f"`{entry.name}`", f"`{recipe['reference_cluster']}`"),
        f"{total:,}" + (f" ({active:,} active)" if active != total else ""),
        *(f"{count:,}" for count in counts),
    ]


def _plan_row(entry: LedgerEntry) -> Iterator[Sequence[str]]:
    plan = entry.plan
    memory, time, bill = plan["memory"], plan["time"], plan["bill"]
    yield [
        f"`{plan['recipe']}`",
        plan["cluster"],
        f"{plan['layout']['nodes']:,}",
        f"{memory['peak_bytes'] / GIB:.1f} of {memory['usable_bytes'] / GIB:.1f}",
        memory["verdict"].replace("_", " "),
        "-" if time["step_seconds"] is None else f"{time['step_seconds']:.3g} s",
        "-" if time["mfu_full"] is None else f"{time['mfu_full']:.0%}",
        "-" if bill["device_hours"] is None else format_significant(bill["device_hours"], 3),
    ]


def _layout_rows(entry: LedgerEntry) -> Iterator[Sequence[str]]:
    for proof in entry.proofs_of(PARITY):
        row = proof.row
        figures = [row[part] for part in ("loss", "gradient", "weight", "float32_loss")]
        yield [
            f"`{row['recipe']}`",
            ", ".join([row["label"], *(f"`{word}`" for word in row["words"])]),
            str(row["ranks"]),
            *("-" if figure is None else f"{figure:.1e}" for figure in figures),
            f"{row['seconds']:.0f}",
            proof.verdict + (", **stale**" if proof.stale else ""),
        ]


def count_proofs(table: str, entries: Sequence[LedgerEntry]) -> str:
    """Count the recipes with a current proof, for each line of a table that names recipes.

    Recipes that no line names are added to the last line.
    """
    by_name = {entry.name: entry for entry in entries}
    *lines, last = table.splitlines(keepends=True)
    listed = NAMES.findall(table)
    others = "".join(f"`{name}` " for name in by_name if name not in listed)
    last = last.replace("| `", f"| {others}`", 1)
    return "".join(_count_line(line, by_name) for line in (*lines, last))


def _count_line(line: str, entries: Mapping[str, LedgerEntry]) -> str:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    listed = [entries[name] for name in NAMES.findall(cells[0]) if name in entries]
    if not listed:
        return line
    texts = cells[: -len(FILES)]
    return table_line([*texts, *(_count_valid(listed, kind) for kind in FILES)])


def _count_valid(entries: Sequence[LedgerEntry], kind: str) -> str:
    """Count the entries whose proofs of one kind are all valid."""
    by_entry = [entry.proofs_of(kind) for entry in entries]
    valid = [proofs for proofs in by_entry if proofs and all(p.is_valid for p in proofs)]
    return f"{len(valid)} of {len(entries)}"


TABLES = {
    "verdicts": (VERDICTS, _verdict_row),
    "runs": (HEAD_OF_RUNS, _run_row),
    "plans": (HEAD_OF_PLANS, _plan_row),
    "layouts": (HEAD_OF_LAYOUTS, _layout_rows),
}


if __name__ == "__main__":
    run_script(lambda words: write_pages(), max_words=0)
