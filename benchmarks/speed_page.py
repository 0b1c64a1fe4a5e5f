"""Write docs/speed.md: what was measured of our speed, beside whom, and what was asked for.

    python -m benchmarks.speed_page

Tables, plots and sentences come from `benchmarks/results` and `benchmarks.wanted`; nothing is
measured here. What was asked for and not reached stands first.
"""

import html
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import speed_data, speed_planner, speed_ranks, speed_runs, speed_training
from benchmarks.ledger_sections import table_line
from benchmarks.marked import split_marked
from benchmarks.speed_claims import (
    Claim,
    Figure,
    Result,
    Row,
    circumstances_of,
    read_result,
)
from benchmarks.speed_plots import draw
from command.arguments import ROOT

PAGE = ROOT / "docs" / "speed.md"
PLOTS = ROOT / "docs" / "speed"
WRITER = "python -m benchmarks.speed_page"
BUILDERS: Sequence[tuple[str, Callable[[Result], Claim]]] = (
    ("train_step", speed_training.dense_step),
    ("model", speed_training.families),
    ("moe", speed_training.experts),
    ("loss", speed_training.loss),
    ("whole_run", speed_runs.whole_run),
    ("checkpoints", speed_runs.checkpoints),
    ("guards", speed_runs.guards),
    ("profiler", speed_runs.profiles),
    ("parallel_overhead", speed_ranks.parallel_overhead),
    ("expert_optimizer", speed_ranks.expert_optimizer),
    ("worlds", speed_ranks.worlds),
    ("data_prep", speed_data.tokenising),
    ("data_prep", speed_data.near_duplicates),
    ("corpus_memory", speed_data.preparation_memory),
    ("data_prep", speed_data.pass_memory),
    ("document_steps", speed_data.document_steps),
    ("data_open", speed_data.opening),
)


def read_claims() -> list[Claim]:
    """Read every claim of which a result is kept, and let the planner predict what is known."""
    claims = []
    for stem, build in BUILDERS:
        if (result := read_result(stem)) is not None:
            claims.append(build(result))
    return [*claims, speed_planner.planner()]


def files(claims: Sequence[Claim], page: str) -> dict[Path, str]:
    """Lay out the page and its plots as they should be today."""
    for part, text in (("summary", summary(claims)), ("claims", sections(claims))):
        head, _, tail = split_marked(page, part, WRITER)
        page = f"{head}{text}{tail}"
    plots = {PLOTS / f"{claim.key}.svg": draw(claim) for claim in claims}
    return {PAGE: page, **plots}


def summary(claims: Sequence[Claim]) -> str:
    """Name what was not reached, then every claim and how many of its figures are."""
    missed = [line for claim in claims for line in _missed(claim)]
    judged = sum(claim.judged() for claim in claims)
    lines = f" These do not:\n\n{''.join(missed)}" if missed else "\n"
    return (
        f"\nOf {judged} figures of which something was asked, {judged - len(missed)} reach it."
        f"{lines}\n| | Beside | Reached |\n|---|---|---:|\n{''.join(map(_line, claims))}\n"
    )


def _missed(claim: Claim) -> Iterator[str]:
    for row, series, figure in claim.misses():
        assert figure.wanted is not None
        of = f", {series}" if len(claim.series) > 1 else ""
        yield (
            f"- [{claim.title}](#{anchor(claim)}), {row.label}{of}: "
            f"**{figure.told}**, wanted {figure.wanted.told(figure.unit)}.\n"
        )


def _line(claim: Claim) -> str:
    judged, missed = claim.judged(), len(list(claim.misses()))
    reached = f"{judged - missed} of {judged}" if judged else "nothing asked"
    name = f"[{claim.title}](#{anchor(claim)})"
    return table_line([name, claim.beside, f"**{reached}**" if missed else reached])


def anchor(claim: Claim) -> str:
    """Name a claim's section as links do."""
    return "".join(c for c in claim.title.lower() if c.isalnum() or c in " -").replace(" ", "-")


def sections(claims: Sequence[Claim]) -> str:
    """Put the sections of all claims below each other."""
    return "\n" + "\n".join(map(section, claims))


def section(claim: Claim) -> str:
    """Lay out one claim: the sentence, the plot, the table, what the result says of itself."""
    after = f"\n{claim.after}\n" if claim.after else ""
    return (
        f"## {claim.title}\n\n{claim.says}\n\n"
        f"![{claim.title}: {claim.axis.title}](speed/{claim.key}.svg)\n\n"
        f"{table(claim)}{after}\n{told_of_itself(claim)}\n"
    )


def table(claim: Claim) -> str:
    """Put the figures of each row beside what was asked of them."""
    series = claim.series
    found = series if len(series) > 1 else ["Found"]
    heads = ["", *claim.heads, *found]
    align = ["---", *("---:" for _ in heads[1:])]
    if claim.judged():
        heads, align = [*heads, "Wanted"], [*align, "---"]
    lines = [table_line(heads), f"|{'|'.join(align)}|\n"]
    for row in claim.rows:
        cells = [_cell(row.figures.get(name)) for name in series]
        asked = [_asked(row)] if claim.judged() else []
        lines.append(table_line([row.label, *row.cells, *cells, *asked]))
    return "".join(lines)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return figure.told if figure.met else f"**{figure.told}**"


def _asked(row: Row) -> str:
    """Say what was asked of a row; of which of its figures, unless it is one thing of all."""
    asked: dict[str, list[str]] = {}
    for name, figure in row.figures.items():
        if figure.wanted is not None:
            asked.setdefault(figure.wanted.told(figure.unit), []).append(name)
    told = "; ".join(
        text if len(names) == len(row.figures) else f"{text} ({', '.join(names)})"
        for text, names in asked.items()
    )
    met = all(figure.met for figure in row.figures.values())
    return told if met else f"{told}: **not reached**"


def told_of_itself(claim: Claim) -> str:
    """Say how it was measured, in the words of the kept result, and what is not kept."""
    told, missing = circumstances_of(claim.result)
    convention = told.pop("convention", "")
    lines = [f"<li>{name}: {html.escape(text)}</li>" for name, text in told.items()]
    lines += [f"<li>not kept with it: {', '.join(missing)}</li>"] if missing else []
    return (
        f"{f'*Counted so: {convention}.*' if convention else ''}\n\n"
        f"<details><summary>Where it comes from</summary><ul>\n"
        f"<li>python -m {claim.command}, kept in {claim.source}</li>\n"
        f"{''.join(f'{line}{chr(10)}' for line in lines)}</ul></details>\n"
    ).lstrip("\n")


def main() -> int:
    """Write the page and its plots, and take away plots of claims that are gone."""
    made = files(read_claims(), PAGE.read_text("utf-8"))
    PLOTS.mkdir(exist_ok=True)
    for plot in set(PLOTS.glob("*.svg")) - set(made):
        plot.unlink()
    for path, text in made.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
