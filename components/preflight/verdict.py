"""Preflight findings of each node, with expected values, and the verdict on all nodes."""

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

FOLDER = "preflight"  # below the run folder: one file per node, and the files below
VERDICT = f"{FOLDER}/verdict.json"
# Host lists for launchers: all nodes, and the nodes to start ranks on.
HOSTS, CHOSEN = f"{FOLDER}/hosts", f"{FOLDER}/nodes"
ANSWER = "answer"  # the check that a silent node fails
DATA = "data"  # the check of the prepared files
FEWEST = 3  # if two values differ, it is unknown which is wrong

# By check: the key with the limit, or the file with the expected values.
RULES = {
    ANSWER: "cluster.preflight.answer_seconds",
    "devices": "cluster.devices_per_node",
    "memory": "cluster.preflight.memory_fraction",
    "run folder": "cluster.preflight.checkpoints",
    "temporary folder": "cluster.preflight.temporary_bytes",
    "copies": "cluster.imports",
    "versions": "docs/versions.md",
    DATA: "manifest.json",
    "cores": "the other nodes",
    "product": "cluster.preflight.product_fraction",
    "clock": "cluster.preflight.clock_seconds",
    "link": "cluster.preflight.link_fraction",
}
REMEDIES = {
    ANSWER: "what its task said is in the run's ranks/, in JOB-preflight*.log",
    "memory": "who else computes here? a process of an earlier job may be left over",
    "run folder": "make room, ask for a larger quota, or take another folder",
    "temporary folder": "make room, ask for a larger quota, or take another folder",
    "copies": "make room there, or name another cluster.site.node_folder",
    "packages": "make setup again, or load the modules with which the run was made",
    "versions": "load modules with others, or make setup where there are none",
    "cores": "report the node to the site: cores are offline, or its tasks may use only a few",
    "product": "who else computes here? are its clocks held down?",
    "clock": "report the node to the site: its time service does not run",
    "link": "check NCCL_SOCKET_IFNAME; if it is right, report the node to the site",
}
_READ_ELSEWHERE = "other nodes read all of it: keep the data and report this node to the site"

Judgement = Literal["ok", "bad", "unknown"]
Rates = dict[str, float | None]  # GB/s by the other node; None: no answer


class NodeFinding(Section):
    """Result of one check on one node; ``unknown`` if there is no value to compare with."""

    check: str
    found: str
    expected: str
    rule: str  # the key with the limit, or the file with the expected values
    verdict: Judgement
    remedy: str


class ClockOffset(Section):
    """Offset of another node's clock from this node's, uncertain by half a round trip."""

    ahead_seconds: float
    uncertain_seconds: float


class NodeVerdict(Section):
    """All findings of one node."""

    node: str
    findings: Annotated[tuple[NodeFinding, ...], Field(strict=False)]

    @property
    def bad_findings(self) -> tuple[NodeFinding, ...]:
        return tuple(entry for entry in self.findings if entry.verdict == "bad")


class NodeReport(NodeVerdict):
    """Report of a node on itself. Cores and rates are compared when all nodes have reported."""

    cores: int  # that a process may use on the node
    product_teraflops: float | None  # of the slowest device; None if it failed
    dtype: str
    clock: ClockOffset | None
    seconds: float


class PreflightVerdict(Section):
    """Verdict on all nodes in the job's order; ``needed`` nodes must be good."""

    needed: int
    nodes: Annotated[tuple[NodeVerdict, ...], Field(strict=False)]
    seconds: float

    @property
    def good_nodes(self) -> tuple[str, ...]:
        return tuple(node.node for node in self.nodes if not node.bad_findings)

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        return tuple(node.node for node in self.nodes if node.bad_findings)

    @property
    def has_enough_nodes(self) -> bool:
        return len(self.good_nodes) >= self.needed

    @property
    def of_all(self) -> tuple[str, ...]:
        """Checks that all nodes fail, so that no other node would pass."""
        failed = [{finding.check for finding in node.bad_findings} for node in self.nodes]
        return tuple(sorted(set.intersection(*failed))) if len(failed) > 1 else ()

    def iter_reasons(self) -> Iterator[str]:
        """Yield a description of the failed checks of each bad node."""
        for node in self.nodes:
            failures = "; ".join(
                f"{f.check}: {f.found}, expected {f.expected}" for f in node.bad_findings
            )
            if failures:
                yield f"{node.node}: {failures}"


def list_hosts(folder: RunFolder, name: str, hosts: Iterable[str]) -> Path:
    """Write the host list ``HOSTS`` or ``CHOSEN`` with the scheduler's names of the nodes."""
    (folder.path / FOLDER).mkdir(exist_ok=True)
    (folder.path / name).write_text("".join(f"{host}\n" for host in hosts), "utf-8")
    return folder.path / name


def read_hosts(folder: RunFolder, name: str) -> tuple[str, ...]:
    """Read a host list; a missing file is an empty list."""
    file = folder.path / name
    return tuple(file.read_text("utf-8").split()) if file.exists() else ()


def write_verdict(folder: RunFolder, verdict: PreflightVerdict) -> None:
    """Write one file per node and the whole verdict."""
    (folder.path / FOLDER).mkdir(exist_ok=True)
    for node in verdict.nodes:
        folder.write_json(f"{FOLDER}/{node.node}.json", node.model_dump(mode="json"))
    folder.write_json(VERDICT, verdict.model_dump(mode="json"))


def read_verdict(folder: RunFolder) -> PreflightVerdict | None:
    """Read the verdict of the running job; None without a preflight."""
    exists = (folder.path / VERDICT).exists()
    return folder.read_file(VERDICT, PreflightVerdict) if exists else None


def forget_verdict(run: Path) -> None:
    """Remove the files of the previous job's preflight. Its events stay in the event log."""
    for file in (run / FOLDER).glob("*"):
        file.unlink()


def make_finding(
    check: str,
    measured: str,
    expected: str,
    verdict: Judgement,
    *,
    rule: str = "",
    remedy: str = "",
) -> NodeFinding:
    """Return a finding. The rule and the remedy default to the tables' entries."""
    return NodeFinding(
        check=check,
        found=measured,
        expected=expected,
        rule=rule or RULES[check],
        verdict=verdict,
        remedy=remedy or REMEDIES.get(check, ""),
    )


def finding_from_error(
    check: str, error: RecipeError, expected: str = "no error"
) -> NodeFinding:
    """Return a bad finding for an error of the program's own checks."""
    remedy = error.remedy
    return make_finding(check, error.problem, expected, "bad", rule=error.path, remedy=remedy)


def judge_nodes(
    cluster: Cluster,
    rules: Preflight,
    names: Sequence[str],
    reports: Mapping[str, NodeReport],
    links: Mapping[str, Rates],
    *,
    needed: int,
    seconds: float,
) -> PreflightVerdict:
    """Combine each node's own findings with the findings of comparisons between nodes."""
    own = list(reports.values())
    product = _product_limit(cluster, rules, own)
    clocks = [reports[name].clock for name in names if name in reports]
    ahead = [clock.ahead_seconds for clock in clocks if clock is not None]
    # The median of the clocks; with only two, the first node's clock counts.
    common = median(ahead) if len(ahead) >= FEWEST else ahead[0] if ahead else 0.0
    # If another node reads the files without errors, they are not damaged: the node is bad.
    are_whole = any(_is_data(each, "ok") for report in own for each in report.findings)
    nodes = []
    for name in names:
        if (report := reports.get(name)) is None:
            expected = f"an answer within {rules.answer_seconds:g} s"
            silent = make_finding(ANSWER, "silent", expected, "bad")
            nodes.append(NodeVerdict(node=name, findings=(silent,)))
            continue
        findings = [*report.findings, _cores(report, own), _product(report, *product)]
        if report.clock is not None:
            findings.append(_clock(report.clock, common, rules))
        if name in links:
            findings.append(_link(cluster, rules, links[name]))
        if are_whole:
            findings = [
                each.model_copy(update={"remedy": _READ_ELSEWHERE})
                if _is_data(each, "bad")
                else each
                for each in findings
            ]
        nodes.append(NodeVerdict(node=name, findings=tuple(findings)))
    return PreflightVerdict(needed=needed, nodes=tuple(nodes), seconds=seconds)


def _is_data(each: NodeFinding, verdict: Judgement) -> bool:
    return (each.check, each.verdict) == (DATA, verdict)


def judge_value(value: float, least: float | None) -> Judgement:
    """Compare a value with its lower limit; ``unknown`` without a limit."""
    return "unknown" if least is None else "ok" if value >= least else "bad"


def _cores(report: NodeReport, reports: Sequence[NodeReport]) -> NodeFinding:
    """Compare a node's cores with the nodes' median: profiles have no number of cores."""
    usual = median_low(each.cores for each in reports)
    known = len(reports) >= FEWEST
    expected = f"{usual}, the nodes' median" if known else "no figure"
    verdict = judge_value(report.cores, usual if known else None)
    return make_finding("cores", f"{report.cores}", expected, verdict)


def _product_limit(
    cluster: Cluster, rules: Preflight, reports: Sequence[NodeReport]
) -> tuple[float | None, str]:
    """Return the lowest good rate and its source: the profile, or else the nodes' median."""
    fraction = rules.product_fraction
    dtype = reports[0].dtype if reports else ""
    if not isinstance(cluster.hardware, str) and dtype in cluster.hardware.gemm_teraflops:
        known = cluster.hardware.gemm_teraflops[dtype]
        return fraction * known, f"{fraction:g} of the profile's {known:g}"
    rates = [
        report.product_teraflops for report in reports if report.product_teraflops is not None
    ]
    if len(rates) < FEWEST:
        return None, "no figure"
    return fraction * median(rates), f"{fraction:g} of the nodes' median {median(rates):.3g}"


def _product(report: NodeReport, limit: float | None, reason: str) -> NodeFinding:
    rate = report.product_teraflops
    expected = reason if limit is None else f"at least {limit:.3g}, {reason}"
    if rate is None:
        return make_finding("product", "none could be made", expected, "bad")
    measured = f"{rate:.3g} TFLOP/s {report.dtype}"
    return make_finding("product", measured, expected, judge_value(rate, limit))


def _clock(clock: ClockOffset, common: float, rules: Preflight) -> NodeFinding:
    lag = clock.ahead_seconds - common  # how far the other clocks are ahead
    sure = abs(lag) - clock.uncertain_seconds
    expected = f"within {rules.clock_seconds:g} s"
    verdict: Judgement = "bad" if sure > rules.clock_seconds else "ok"
    return make_finding("clock", f"{-lag:+.3f} s from the others", expected, verdict)


def _link(cluster: Cluster, rules: Preflight, rates: Rates) -> NodeFinding:
    """Judge a node by the better of its two links: one slow link may be the other's fault."""
    best = max((rate for rate in rates.values() if rate is not None), default=None)
    limit, expected = None, "no figure"
    # Profiles have no figure for Intel GPUs: the link is measured between hosts.
    if not isinstance(cluster.hardware, str) and cluster.device != "xpu":
        across, fraction = cluster.hardware.across, rules.link_fraction
        known = across.all_reduce_gigabytes_per_second or across.peak_gigabytes_per_second
        if known is not None:
            limit = fraction * known
            expected = f"at least {limit:.3g}, {fraction:g} of the profile's {known:g}"
    if best is None:
        return make_finding("link", f"no answer of {', '.join(rates)}", expected, "bad")
    return make_finding("link", f"{best:.3g} GB/s", expected, judge_value(best, limit))
