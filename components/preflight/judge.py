"""Compare the nodes with one another and with the profile, once all have answered."""

from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import Literal

from components.config.schema.cluster import Preflight
from components.config.schema.sections import Cluster
from components.preflight.devices import Rates
from components.preflight.verdict import (
    ANSWER,
    ClockOffset,
    NodeFinding,
    NodeReport,
    NodeVerdict,
    PreflightVerdict,
)

FEWEST = 3  # of two that differ nobody knows which is wrong


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
    return PreflightVerdict(needed=needed, nodes=tuple(nodes), seconds=seconds)


def _limit_verdict(value: float, limit: float | None) -> Literal["ok", "bad", "unknown"]:
    if limit is None:
        return "unknown"
    return "ok" if value >= limit else "bad"


def _cores(report: NodeReport, reports: Sequence[NodeReport]) -> NodeFinding:
    """Expect as many cores as half of the nodes have: a profile says of none how many."""
    usual = median_low(one.cores for one in reports)
    known = len(reports) >= FEWEST
    return NodeFinding(
        check="cores",
        found=f"{report.cores}",
        expected=f"{usual}, the nodes' median" if known else "no figure",
        rule="the other nodes",
        verdict=_limit_verdict(report.cores, usual if known else None),
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
        verdict="bad" if rate is None else _limit_verdict(rate, limit),
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
        verdict="bad" if best is None else _limit_verdict(best, limit),
        remedy="is the right interface named (NCCL_SOCKET_IFNAME)? else tell the site",
    )
