"""Write the ledger: what of every recipe is published, predicted, rehearsed, proved, measured.

    python -m benchmarks.ledger.ledger

Four places take their tables from the same rows: `recipes/README.md` the verdicts and plans,
`docs/ledger.md` everything, `docs/parity.md` the layouts, `README.md` the counts.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.entry import enter
from benchmarks.ledger.proofs import (
    FILES,
    GIB,
    NOT_DONE,
    PARITY,
    KeptProof,
    LedgerEntry,
    read_entries,
)
from benchmarks.ledger.script_values import script_cell
from benchmarks.ledger.sections import section, table_line
from benchmarks.marked import split_marked
from command.arguments import ROOT
from components.report.plan_tables import significant

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


def write() -> None:
    """Put each table into its page, between its marks."""
    for page, text in pages().items():
        page.write_text(text, "utf-8")


def pages() -> dict[Path, str]:
    """Lay out each page as it should be today."""
    entries = read_entries()
    made = {}
    for page, parts in PARTS.items():
        text = page.read_text("utf-8")
        for part in parts:
            text = _put(text, part, entries)
        made[page] = text
    return made


def _put(text: str, part: str, entries: Sequence[LedgerEntry]) -> str:
    head, inside, tail = split_marked(text, part, "make golden")
    table = counts(inside, entries) if part == "counts" else MADE[part](entries)
    return f"{head}{table}{tail}"


def _verdicts(entries: Sequence[LedgerEntry]) -> str:
    return VERDICTS + "".join(map(_verdict_row, entries))


def _verdict_row(entry: LedgerEntry) -> str:
    cells = [
        f"[`{entry.name}`](../docs/ledger.md#{entry.name})",
        script_cell(entry.name),
        f"{len(entry.plan['published'])} figures",
        _predicted(entry),
        *(cell(entry, kind) for kind in FILES),
    ]
    return table_line(cells)


def _predicted(entry: LedgerEntry) -> str:
    seconds = entry.plan["time"]["step_seconds"]
    step = "no step" if seconds is None else f"{seconds:.3g} s"
    return f"{step}, {entry.plan['memory']['verdict'].replace('_', ' ')}"


def cell(entry: LedgerEntry, kind: str) -> str:
    """Say in a few words what the rows of one kind come to."""
    proofs = entry.of(kind)
    current = [proof for proof in proofs if not proof.stale]
    if not proofs:
        return NOT_DONE[kind]
    if not current:
        return f"stale, {max(proof.row['date'] for proof in proofs)}"
    stale = len(proofs) - len(current)
    return _summary(current) + (f"; {stale} stale" if stale else "")


def _summary(proofs: Sequence[KeptProof]) -> str:
    verdicts = list(dict.fromkeys(proof.verdict for proof in proofs))
    count = f", {len(proofs)} layouts" if len(proofs) > 1 else ""
    return ", ".join(verdicts) + count


def _runs(entries: Sequence[LedgerEntry]) -> str:
    return HEAD_OF_RUNS + "".join(map(_run_row, entries))


def _run_row(entry: LedgerEntry) -> str:
    recipe, derived = entry.composed["recipe"], entry.composed["derived"]
    total, active = (derived["parameters"][key] for key in ("total", "active"))
    counts = [recipe["budget"]["total_tokens"], derived["steps"], derived["ranks"]]
    cells = [
        *(f"`{entry.name}`", f"`{recipe['home']}`"),
        f"{total:,}" + (f" ({active:,} active)" if active != total else ""),
        *(f"{count:,}" for count in counts),
    ]
    return table_line(cells)


def _plans(entries: Sequence[LedgerEntry]) -> str:
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
        "-" if bill["device_hours"] is None else significant(bill["device_hours"], 3),
    ]
    return table_line(cells)


def _layouts(entries: Sequence[LedgerEntry]) -> str:
    proofs = [proof for entry in entries for proof in entry.of(PARITY)]
    return HEAD_OF_LAYOUTS + "".join(map(_layout_row, proofs))


def _layout_row(proof: KeptProof) -> str:
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


def _sections(entries: Sequence[LedgerEntry]) -> str:
    return "\n".join(map(section, entries))


def counts(table: str, entries: Sequence[LedgerEntry]) -> str:
    """Count, for each line of a table that names recipes, how many have a proof of today.

    A recipe that no line names joins the last one.
    """
    by_name = {entry.name: entry for entry in entries}
    *lines, last = table.splitlines(keepends=True)
    named = NAMES.findall(table)
    others = "".join(f"`{name}` " for name in by_name if name not in named)
    last = last.replace("| `", f"| {others}`", 1)
    return "".join(_counted(line, by_name) for line in (*lines, last))


def _counted(line: str, entries: Mapping[str, LedgerEntry]) -> str:
    cells = [one.strip() for one in line.strip().strip("|").split("|")]
    named = [entries[name] for name in NAMES.findall(cells[0]) if name in entries]
    if not named:
        return line
    kept = cells[: -len(FILES)]
    return table_line([*kept, *(_share(named, kind) for kind in FILES)])


def _share(entries: Sequence[LedgerEntry], kind: str) -> str:
    """Count those of which every kept row stands."""
    proofs = [entry.of(kind) for entry in entries]
    done = [rows for rows in proofs if rows and all(proof.stands for proof in rows)]
    return f"{len(done)} of {len(entries)}"


MADE = {
    "verdicts": _verdicts,
    "runs": _runs,
    "plans": _plans,
    "sections": _sections,
    "layouts": _layouts,
}


if __name__ == "__main__":
    enter(lambda words: write(), most=0)
