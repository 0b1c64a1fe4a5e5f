"""Write the ledger: published, predicted, rehearsed, proved and measured figures of recipes.

    python -m benchmarks.ledger.ledger

Four pages have tables from the same rows: `recipes/README.md` verdicts and plans,
`docs/ledger.md` all rows, `docs/parity.md` layouts, `README.md` counts.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from benchmarks.ledger.sections import recipe_section
from command.arguments import ROOT
from components.report.numbers import format_significant

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
    table = count_proofs(section, entries) if part == "counts" else TABLES[part](entries)
    return f"{head}{table}{tail}"


def _verdict_table(entries: Sequence[LedgerEntry]) -> str:
    return VERDICTS + "".join(map(_verdict_row, entries))


def _verdict_row(entry: LedgerEntry) -> str:
    cells = [
        f"[`{entry.name}`](../docs/ledger.md#{entry.name})",
        script_cell(entry.name),
        f"{len(entry.plan['published'])} figures",
        _predicted_cell(entry),
        *(proof_cell(entry, kind) for kind in FILES),
    ]
    return table_line(cells)


def _predicted_cell(entry: LedgerEntry) -> str:
    seconds = entry.plan["time"]["step_seconds"]
    step = "no step" if seconds is None else f"{seconds:.3g} s"
    return f"{step}, {entry.plan['memory']['verdict'].replace('_', ' ')}"


def proof_cell(entry: LedgerEntry, kind: str) -> str:
    """Summarize the proofs of one kind."""
    proofs = entry.proofs_of(kind)
    current = [proof for proof in proofs if not proof.stale]
    if not proofs:
        return NOT_DONE[kind]
    if not current:
        return f"stale, {max(proof.row['date'] for proof in proofs)}"
    stale = len(proofs) - len(current)
    return _summary(current) + (f"; {stale} stale" if stale else "")


def _summary(proofs: Sequence[StoredProof]) -> str:
    verdicts = list(dict.fromkeys(proof.verdict for proof in proofs))
    count = f", {len(proofs)} layouts" if len(proofs) > 1 else ""
    return ", ".join(verdicts) + count


def _run_table(entries: Sequence[LedgerEntry]) -> str:
    return HEAD_OF_RUNS + "".join(map(_run_row, entries))


def _run_row(entry: LedgerEntry) -> str:
    recipe, derived = entry.composed["recipe"], entry.composed["derived"]
    total, active = (derived["parameters"][key] for key in ("total", "active"))
    counts = [recipe["budget"]["total_tokens"], derived["steps"], derived["ranks"]]
    cells = [
        *(f"`{entry.name}`", f"`{recipe['reference_cluster']}`"),
        f"{total:,}" + (f" ({active:,} active)" if active != total else ""),
        *(f"{count:,}" for count in counts),
    ]
    return table_line(cells)


def _plan_table(entries: Sequence[LedgerEntry]) -> str:
    return HEAD_OF_PLANS + "".join(map(_plan_row, entries))


def _plan_row(entry: LedgerEntry) -> str:
    plan = entry.plan
    memory, time, bill = plan["memory"], plan["time"], plan["bill"]
    cells = [
        f"`{plan['recipe']}`",
        plan["cluster"],
        f"{plan['layout']['nodes']:,}",
        f"{memory['peak_bytes'] / GIB:.1f} of {memory['usable_bytes'] / GIB:.1f}",
        memory["verdict"].replace("_", " "),
        "-" if time["step_seconds"] is None else f"{time['step_seconds']:.3g} s",
        "-" if time["mfu_full"] is None else f"{time['mfu_full']:.0%}",
        "-" if bill["device_hours"] is None else format_significant(bill["device_hours"], 3),
    ]
    return table_line(cells)


def _layout_table(entries: Sequence[LedgerEntry]) -> str:
    proofs = [proof for entry in entries for proof in entry.proofs_of(PARITY)]
    return HEAD_OF_LAYOUTS + "".join(map(_layout_row, proofs))


def _layout_row(proof: StoredProof) -> str:
    row = proof.row
    figures = [row[part] for part in ("loss", "gradient", "weight", "float32_loss")]
    cells = [
        f"`{row['recipe']}`",
        ", ".join([row["label"], *(f"`{word}`" for word in row["words"])]),
        str(row["ranks"]),
        *("-" if figure is None else f"{figure:.1e}" for figure in figures),
        f"{row['seconds']:.0f}",
        proof.verdict + (", **stale**" if proof.stale else ""),
    ]
    return table_line(cells)


def _all_sections(entries: Sequence[LedgerEntry]) -> str:
    return "\n".join(map(recipe_section, entries))


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
    "verdicts": _verdict_table,
    "runs": _run_table,
    "plans": _plan_table,
    "sections": _all_sections,
    "layouts": _layout_table,
}


if __name__ == "__main__":
    run_script(lambda words: write_pages(), max_words=0)
