"""Section of a recipe in the ledger: each finding with machine, versions and date."""

from collections.abc import Iterator

from pydantic import TypeAdapter

from benchmarks.generated_section import table_line
from benchmarks.ledger.proofs import FILES, GIB, NOT_DONE, LedgerEntry, StoredProof
from components.config.schema.sections import PublishedFigure
from components.planner.result import ComparedFigure
from components.report.plan_tables import published_sheet

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
    seconds = time["step_seconds"]
    if seconds is None:
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
