"""A recipe's section of the ledger: each finding with its machine, versions and date."""

from collections.abc import Iterator, Sequence

from pydantic import TypeAdapter

from benchmarks.ledger.proofs import FILES, GIB, NOT_DONE, KeptProof, LedgerEntry
from components.config.schema.sections import PublishedFigure
from components.planner.result import ComparedFigure
from components.report.plan_tables import published_sheet

_PUBLISHED = TypeAdapter(dict[str, ComparedFigure | PublishedFigure])

DIGITS = 6  # of a fingerprint, as in a lock's name
PROOFS = """\
| | Found | Of | On | With | Date |
|---|---|---|---|---|---|
"""
PUBLISHED = """\
| Published | Value | Unit | Source | Planned | Apart |
|---|---:|---|---|---:|---:|
"""


def section(entry: LedgerEntry) -> str:
    """Lay out all that is known of one recipe."""
    return (
        f"## {entry.name}\n\n{_headline(entry)}\n\n"
        f"{PROOFS}{''.join(_proof_rows(entry))}\n"
        f"{PUBLISHED}{''.join(_published_rows(entry))}"
    )


def _headline(entry: LedgerEntry) -> str:
    recipe, derived = entry.composed["recipe"], entry.composed["derived"]
    works = ", ".join(f"`{name}`" for name in recipe["works"])
    return (
        f"{recipe['why']} {derived['parameters']['total']:,} parameters, "
        f"{derived['ranks']:,} ranks, {derived['steps']:,} steps; works: {works or 'none'}."
    )


def _proof_rows(entry: LedgerEntry) -> Iterator[str]:
    yield table_line(_plan_cells(entry))
    for kind in FILES:
        proofs = entry.of(kind)
        yield from (table_line(_proof_cells(proof)) for proof in proofs)
        if not proofs:
            yield table_line([kind, NOT_DONE[kind], "", "", "", ""])


def _plan_cells(entry: LedgerEntry) -> list[str]:
    memory, time = entry.plan["memory"], entry.plan["time"]
    seconds = time["step_seconds"]
    if seconds is None:
        reason = entry.plan["missing"][0]  # what prevents a step time comes first
        step = f"no step time: {reason['problem']} (`{reason['figure']}`)"
    else:
        step = f"{seconds:.3g} s a step, MFU {time['mfu_full']:.0%}"
    peak, usable = (memory[f"{key}_bytes"] / GIB for key in ("peak", "usable"))
    found = f"{step}; {peak:.1f} of {usable:.1f} GiB, {memory['verdict'].replace('_', ' ')}"
    where = (
        f"{entry.plan['layout']['nodes']:,} nodes of {entry.plan['cluster']}, by its profile"
    )
    return [
        "plan",
        found,
        _of("full", entry.composed["fingerprint"]),
        where,
        "no package",
        "this commit",
    ]


def _proof_cells(proof: KeptProof) -> list[str]:
    row = proof.row
    of = _of(row["scale"], row["fingerprint"]["mathematics"])
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    machine = row["machine"]
    on = f"{machine['processor']}, {machine['cores']} cores"
    stale = "; **stale**: the recipe has changed since" if proof.stale else ""
    return [proof.kind, proof.found + stale, of, on, versions, row["date"]]


def _of(scale: str, fingerprint: str) -> str:
    return f"{scale} `{fingerprint[:DIGITS]}`"


def _published_rows(entry: LedgerEntry) -> Iterator[str]:
    published = _PUBLISHED.validate_python(entry.plan["published"])
    for row, item in zip(published_sheet(published).rows, published.values(), strict=True):
        name, value, unit, planned, apart = row
        yield table_line([name, value, unit, item.source, planned, apart])


def table_line(cells: Sequence[str]) -> str:
    """Write a row of a table; a bar in a cell would be a border."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
