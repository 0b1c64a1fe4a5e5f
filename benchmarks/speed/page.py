"""Write docs/speed.md: what was measured of our speed, beside whom, and what was asked for.

    python -m benchmarks.speed.page

Tables and sentences come from `benchmarks/results` and `wanted`; nothing is
measured here. What was asked for and not reached stands first.
"""

import html
from collections.abc import Iterator, Sequence

from benchmarks.entry import enter
from benchmarks.ledger.sections import table_line
from benchmarks.marked import split_marked
from benchmarks.speed.claims import Claim, ClaimFinding, read_findings
from benchmarks.speed.figures import SpeedFigure, SpeedRow
from benchmarks.speed.results import circumstances_of
from command.arguments import ROOT

PAGE = ROOT / "docs" / "speed.md"
WRITER = "python -m benchmarks.speed.page"
BEHIND = "Of these nothing was asked, and what stands beside them does better, or is a limit:"


def render(findings: Sequence[ClaimFinding], page: str) -> str:
    """Render the page as it should be today."""
    for part, text in (("summary", summary(findings)), ("claims", sections(findings))):
        head, _, tail = split_marked(page, part, WRITER)
        page = f"{head}{text}{tail}"
    return page


def summary(findings: Sequence[ClaimFinding]) -> str:
    """Name what was not reached, then every claim and how many of its figures are."""
    missed = [line for finding in findings for line in _missed(finding)]
    judged = sum(finding.judged() for finding in findings)
    lines = f" These do not:\n\n{''.join(missed)}" if missed else "\n"
    behind = [line for finding in findings for line in _behind(finding)]
    lines += f"\n{BEHIND}\n\n{''.join(behind)}" if behind else ""
    return (
        f"\nOf {judged} figures of which something was asked, {judged - len(missed)} reach it."
        f"{lines}\n| | Beside | Reached |\n|---|---|---:|\n{''.join(map(_line, findings))}\n"
    )


def _missed(finding: ClaimFinding) -> Iterator[str]:
    for words, figure in finding.misses():
        assert figure.wanted is not None
        wanted = figure.wanted.told(figure.unit)
        yield f"- {link(finding.claim)}, {words}: **{figure.told}**, wanted {wanted}.\n"


def _behind(finding: ClaimFinding) -> Iterator[str]:
    if found := finding.behind():
        words, worst = found[0]
        every = sum(1 for _ in finding.figures())
        yield (
            f"- {link(finding.claim)}: {len(found)} of {every} figures, at the worst {words}: "
            f"{worst.told}.\n"
        )


def _line(finding: ClaimFinding) -> str:
    judged, missed = finding.judged(), len(finding.misses())
    reached = f"{judged - missed} of {judged}" if judged else "nothing asked"
    bold = f"**{reached}**" if missed else reached
    return table_line([link(finding.claim), finding.claim.beside, bold])


def link(claim: Claim) -> str:
    """Link to a claim's section."""
    anchor = "".join(c for c in claim.title.lower() if c.isalnum() or c in " -")
    return f"[{claim.title}](#{anchor.replace(' ', '-')})"


def sections(findings: Sequence[ClaimFinding]) -> str:
    """Put the sections of all claims below each other."""
    return "\n" + "\n".join(map(section, findings))


def section(finding: ClaimFinding) -> str:
    """Lay out one claim: the sentence, the table, what the result says of itself."""
    claim = finding.claim
    after = f"\n{finding.after}\n" if finding.after else ""
    return (
        f"## {claim.title}\n\n{finding.says}\n\n"
        f"*Figures: {claim.axis.told}.*\n\n"
        f"{table(finding)}{after}\n{told_of_itself(finding)}\n"
    )


def table(finding: ClaimFinding) -> str:
    """Put the figures of each row beside what was asked of them."""
    series, judged = finding.series, finding.judged()
    found = series if len(series) > 1 else ["Found"]
    heads = ["", *finding.claim.heads, *found]
    align = ["---", *("---:" for _ in heads[1:])]
    if judged:
        heads, align = [*heads, "Wanted"], [*align, "---"]
    lines = [table_line(heads), f"|{'|'.join(align)}|\n"]
    for row in finding.rows:
        explained = [*row.cells, *("" for _ in finding.claim.heads)][: len(finding.claim.heads)]
        cells = [_cell(row.figures.get(name)) for name in series]
        asked = [_asked(row)] if judged else []
        lines.append(table_line([row.label, *explained, *cells, *asked]))
    return "".join(lines)


def _cell(figure: SpeedFigure | None) -> str:
    if figure is None:
        return ""
    return figure.told if figure.met else f"**{figure.told}**"


def _asked(row: SpeedRow) -> str:
    """Give what was asked of a row; of which of its figures, unless it is one thing of all."""
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


def told_of_itself(finding: ClaimFinding) -> str:
    """Describe how it was measured, in the words of the kept result, and what is not kept."""
    claim = finding.claim
    told, missing = circumstances_of(finding.result)
    convention = told.pop("convention", "")
    lines = [f"<li>{name}: {html.escape(text)}</li>" for name, text in told.items()]
    lines += [f"<li>not kept with it: {', '.join(missing)}</li>"] if missing else []
    return (
        f"{f'*Counted so: {convention}.*' if convention else ''}\n\n"
        f"<details><summary>Where it comes from</summary><ul>\n"
        f"<li>{html.escape(usage(claim.script))}, kept in {claim.kept_in}</li>\n"
        f"{''.join(f'{line}{chr(10)}' for line in lines)}</ul></details>\n"
    ).lstrip("\n")


def usage(script: str) -> str:
    """Return the command that measures, as the script's docstring has it."""
    (file,) = (ROOT / "benchmarks").rglob(f"{script}.py")
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    begin = f"    python -m {module}"
    lines = file.read_text("utf-8").splitlines()
    return next(line.strip() for line in lines if line.startswith(begin))


def main() -> int:
    """Write the page."""
    PAGE.write_text(render(read_findings(), PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    enter(lambda words: main(), most=0)
