"""What was found of each node and what was expected; the verdict, once all have answered."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import Annotated, Literal

from pydantic import Field

from components.config.schema.cluster import Preflight
from components.config.schema.sections import Cluster
from components.config.schema.types import Section
from components.errors import RecipeError
from components.run.folder import RunFolder

FOLDER = "preflight"  # below the run's folder: a file a node, and these
VERDICT = f"{FOLDER}/verdict.json"
# For launchers: all nodes, and those to start on.
HOSTS, CHOSEN = f"{FOLDER}/hosts", f"{FOLDER}/nodes"
ANSWER = "answer"  # the check that a silent node fails
DATA = "data"  # the check of the prepared files
FEWEST = 3  # of two that differ nobody knows which is wrong

Judgement = Literal["ok", "bad", "unknown"]
Rates = dict[str, float | None]  # gigabytes a second, by the other node; None: no answer


class NodeFinding(Section):
    """One check on one node; ``unknown`` is what nobody has a figure to compare with."""

    check: str
    found: str
    expected: str
    rule: str  # the key that says where the limit is, or the file that holds what is expected
    verdict: Judgement
    remedy: str


class ClockOffset(Section):
    """How far another node's clock is ahead of ours, give or take half a round trip."""

    ahead_seconds: float
    uncertain_seconds: float


class NodeVerdict(Section):
    """All findings of one node."""

    node: str
    findings: Annotated[tuple[NodeFinding, ...], Field(strict=False)]

    @property
    def bad(self) -> tuple[NodeFinding, ...]:
        return tuple(one for one in self.findings if one.verdict == "bad")


class NodeReport(NodeVerdict):
    """What a node says of itself; cores and rates are compared once all are known."""

    cores: int  # that a process may use there
    product_teraflops: float | None  # the slowest device's; None where none could be made
    dtype: str
    clock: ClockOffset | None
    seconds: float


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


def read_hosts(folder: RunFolder, name: str) -> tuple[str, ...]:
    """Read such a list; without one, no node."""
    file = folder.path / name
    return tuple(file.read_text("utf-8").split()) if file.exists() else ()


def write_verdict(folder: RunFolder, verdict: PreflightVerdict) -> None:
    """Write a file a node, and the whole."""
    (folder.path / FOLDER).mkdir(exist_ok=True)
    for one in verdict.nodes:
        folder.write_json(f"{FOLDER}/{one.node}.json", one.model_dump(mode="json"))
    folder.write_json(VERDICT, verdict.model_dump(mode="json"))


def read_verdict(folder: RunFolder) -> PreflightVerdict | None:
    """Read the verdict of the job that is running, if its nodes were looked at."""
    there = (folder.path / VERDICT).exists()
    return folder.read(VERDICT, PreflightVerdict) if there else None


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


def judge(
    cluster: Cluster,
    rules: Preflight,
    names: Sequence[str],
    reports: Mapping[str, NodeReport],
    links: Mapping[str, Rates],
    *,
    needed: int,
    seconds: float,
) -> PreflightVerdict:
    """Put each node's own findings and those of the comparison together."""
    own = list(reports.values())
    product = _product_limit(cluster, rules, own)
    clocks = [reports[name].clock for name in names if name in reports]
    ahead = [clock.ahead_seconds for clock in clocks if clock is not None]
    # What most clocks agree on; of two the first node's is believed.
    common = median(ahead) if len(ahead) >= FEWEST else ahead[0] if ahead else 0.0
    nodes = []
    for name in names:
        if (report := reports.get(name)) is None:
            silent = NodeFinding(
                check=ANSWER,
                found="silent",
                expected=f"an answer within {rules.answer_seconds:g} s",
                rule="cluster.preflight.answer_seconds",
                verdict="bad",
                remedy="what its task said is in the run's ranks/, in JOB-preflight*.log",
            )
            nodes.append(NodeVerdict(node=name, findings=(silent,)))
            continue
        found = [*report.findings, _cores(report, own), _product(report, *product)]
        if report.clock is not None:
            found.append(_clock(report.clock, common, rules))
        if name in links:
            found.append(_link(cluster, rules, links[name]))
        nodes.append(NodeVerdict(node=name, findings=tuple(found)))
    return PreflightVerdict(needed=needed, nodes=_seen_by_others(nodes), seconds=seconds)


def _seen_by_others(nodes: Sequence[NodeVerdict]) -> tuple[NodeVerdict, ...]:
    """Blame a node, and not the data, for files that the others read whole."""
    found = [finding for one in nodes for finding in one.findings if finding.check == DATA]
    if all(finding.verdict != "ok" for finding in found):
        return tuple(nodes)
    own = {
        "remedy": "other nodes read it whole: leave the data, and tell the site of this node"
    }
    return tuple(
        one.model_copy(
            update={
                "findings": tuple(
                    finding.model_copy(update=own)
                    if finding.check == DATA and finding.verdict == "bad"
                    else finding
                    for finding in one.findings
                )
            }
        )
        for one in nodes
    )


def _judged(value: float, least: float | None) -> Judgement:
    return "unknown" if least is None else "ok" if value >= least else "bad"


def _cores(report: NodeReport, reports: Sequence[NodeReport]) -> NodeFinding:
    """Expect as many cores as half of the nodes have: a profile says of none how many."""
    usual = median_low(one.cores for one in reports)
    known = len(reports) >= FEWEST
    return NodeFinding(
        check="cores",
        found=f"{report.cores}",
        expected=f"{usual}, the nodes' median" if known else "no figure",
        rule="the other nodes",
        verdict=_judged(report.cores, usual if known else None),
        remedy="tell the site: cores are offline there, or its tasks are confined to a few",
    )


def _product_limit(
    cluster: Cluster, rules: Preflight, reports: Sequence[NodeReport]
) -> tuple[float | None, str]:
    """Return the least rate and its reason: the profile's figure, or else the nodes' median."""
    fraction = rules.product_fraction
    dtype = reports[0].dtype if reports else ""
    if not isinstance(cluster.hardware, str) and dtype in cluster.hardware.gemm_teraflops:
        known = cluster.hardware.gemm_teraflops[dtype]
        return fraction * known, f"{fraction:g} of the profile's {known:g}"
    rates = [one.product_teraflops for one in reports if one.product_teraflops is not None]
    if len(rates) < FEWEST:
        return None, "no figure"
    return fraction * median(rates), f"{fraction:g} of the nodes' median {median(rates):.3g}"


def _product(report: NodeReport, limit: float | None, reason: str) -> NodeFinding:
    rate = report.product_teraflops
    return NodeFinding(
        check="product",
        found="none could be made" if rate is None else f"{rate:.3g} TFLOP/s {report.dtype}",
        expected=reason if limit is None else f"at least {limit:.3g}, {reason}",
        rule="cluster.preflight.product_fraction",
        verdict="bad" if rate is None else _judged(rate, limit),
        remedy="who else computes here? are its clocks held down?",
    )


def _clock(clock: ClockOffset, common: float, rules: Preflight) -> NodeFinding:
    behind = clock.ahead_seconds - common  # as far as the others are ahead of it
    sure = abs(behind) - clock.uncertain_seconds
    return NodeFinding(
        check="clock",
        found=f"{-behind:+.3f} s from the others",
        expected=f"within {rules.clock_seconds:g} s",
        rule="cluster.preflight.clock_seconds",
        verdict="bad" if sure > rules.clock_seconds else "ok",
        remedy="tell the site: its time service does not run there",
    )


def _link(cluster: Cluster, rules: Preflight, rates: Rates) -> NodeFinding:
    """Judge a node by the better of its two links: a slow other is that one's fault."""
    best = max((rate for rate in rates.values() if rate is not None), default=None)
    limit, expected = None, "no figure"
    # No profile has a figure for Intel's GPUs, whose hosts are measured.
    if not isinstance(cluster.hardware, str) and cluster.device != "xpu":
        across, fraction = cluster.hardware.across, rules.link_fraction
        known = across.all_reduce_gigabytes_per_second or across.peak_gigabytes_per_second
        if known is not None:
            limit = fraction * known
            expected = f"at least {limit:.3g}, {fraction:g} of the profile's {known:g}"
    return NodeFinding(
        check="link",
        found=f"{best:.3g} GB/s" if best is not None else f"no answer of {', '.join(rates)}",
        expected=expected,
        rule="cluster.preflight.link_fraction",
        verdict="bad" if best is None else _judged(best, limit),
        remedy="is the right interface named (NCCL_SOCKET_IFNAME)? else tell the site",
    )
