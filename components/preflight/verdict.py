"""What was found of each node, what was expected, and which nodes the ranks start on."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from components.config.schema.types import Section
from components.errors import RecipeError
from components.run.folder import RunFolder

FOLDER = "preflight"  # below the run's folder: a file a node, and these
VERDICT = f"{FOLDER}/verdict.json"
# For launchers: all nodes, and those to start on.
HOSTS, CHOSEN = f"{FOLDER}/hosts", f"{FOLDER}/nodes"
ANSWER = "answer"  # the check that a silent node fails


class NodeFinding(Section):
    """One check on one node; ``unknown`` is what nobody has a figure to compare with.

    ``rule`` is the key that says where the limit is, or the file that holds what is expected.
    """

    check: str
    found: str
    expected: str
    rule: str
    verdict: Literal["ok", "bad", "unknown"]
    remedy: str


class ClockOffset(Section):
    """How far another node's clock is ahead of ours, give or take half a round trip."""

    ahead_seconds: float
    uncertain_seconds: float


class NodeReport(Section):
    """What a node says of itself; cores and rates are compared once all are known.

    ``cores`` are those that a process may use there. ``product_teraflops`` is the slowest
    device's, ``None`` where none could be made.
    """

    node: str
    findings: Annotated[tuple[NodeFinding, ...], Field(strict=False)]
    cores: int
    product_teraflops: float | None
    dtype: str
    clock: ClockOffset | None
    seconds: float

    @property
    def bad(self) -> bool:
        return any(one.verdict == "bad" for one in self.findings)


class NodeVerdict(Section):
    """All findings of one node."""

    node: str
    findings: Annotated[tuple[NodeFinding, ...], Field(strict=False)]

    @property
    def bad(self) -> tuple[NodeFinding, ...]:
        return tuple(one for one in self.findings if one.verdict == "bad")


class PreflightVerdict(Section):
    """All nodes in the order of the job; ``needed`` of them must be good."""

    needed: int
    nodes: Annotated[tuple[NodeVerdict, ...], Field(strict=False)]
    seconds: float

    @property
    def good(self) -> tuple[str, ...]:
        return tuple(one.node for one in self.nodes if not one.bad)

    @property
    def bad(self) -> tuple[str, ...]:
        return tuple(one.node for one in self.nodes if one.bad)

    @property
    def holds(self) -> bool:
        return len(self.good) >= self.needed

    @property
    def of_all(self) -> tuple[str, ...]:
        """Name the checks that no node passes: another node would not pass them either."""
        failed = [{finding.check for finding in one.bad} for one in self.nodes]
        return tuple(sorted(set.intersection(*failed))) if len(failed) > 1 else ()

    def reasons(self) -> Iterator[str]:
        """Describe, for each bad node what is wrong with it."""
        for one in self.nodes:
            wrong = "; ".join(f"{f.check}: {f.found}, expected {f.expected}" for f in one.bad)
            if wrong:
                yield f"{one.node}: {wrong}"


def list_hosts(folder: RunFolder, name: str, hosts: Iterable[str]) -> Path:
    """Write a launcher's list, ``HOSTS`` or ``CHOSEN``: names as the scheduler writes them."""
    (folder.path / FOLDER).mkdir(exist_ok=True)
    (folder.path / name).write_text("".join(f"{host}\n" for host in hosts), "utf-8")
    return folder.path / name


def write_verdict(folder: RunFolder, verdict: PreflightVerdict) -> None:
    """Write a file a node, and the whole."""
    (folder.path / FOLDER).mkdir(exist_ok=True)
    for one in verdict.nodes:
        folder.write_json(f"{FOLDER}/{one.node}.json", one.model_dump(mode="json"))
    folder.write_json(VERDICT, verdict.model_dump(mode="json"))


def read_verdict(folder: RunFolder) -> PreflightVerdict | None:
    """Read the verdict of the job that is running, if its nodes were looked at."""
    if not (folder.path / VERDICT).exists():
        return None
    return folder.read(VERDICT, PreflightVerdict)


def forget_verdict(run: Path) -> None:
    """Remove what the job before has left; its events are in the journal."""
    for file in (run / FOLDER).glob("*"):
        file.unlink()


def refused(check: str, error: RecipeError) -> NodeFinding:
    """Report what a check of the house itself refuses."""
    return NodeFinding(
        check=check,
        found=error.problem,
        expected="nothing to mend",
        rule=error.path,
        verdict="bad",
        remedy=error.remedy,
    )
