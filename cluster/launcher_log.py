"""Parse the output of a launcher: ranks that died, nodes without ranks, other errors.

Launchers are srun, Cray's PALS, Hydra (MPICH, Intel MPI) and Open MPI. Their daemons, ssh and
PBS write into the same output.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.scheduler import short_name

# `srun: error: NODE: task 5: Killed` (srun) and `NODE: rank 5 died from signal 9` (PALS), then
# the forms of Open MPI and Hydra. MPICH's Hydra names no rank.
_ENDINGS = (
    r"^(?:srun: error: )?(?P<node>[\w.-]+): "
    r"(?:tasks?|rank) (?P<rank>\d+)[\d,-]*:? (?P<what>.+)$",
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) "
    r"(?P<what>exited on\s+signal \d+ \([^)]*\))",
    r"^= +(?:RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?P<node>[\w.-]+)\s+"
    r"= +(?P<what>(?:KILLED BY SIGNAL|EXIT CODE): .+)$",
)
_KILLED = re.compile(
    r"Killed|Bus error|Segmentation fault|Aborted|died from signal (?!15)|Out Of Memory|"
    r"EXIT CODE: (?:6|7|9|11|13[4579])\b"
)
_TERMINATED = re.compile(r"Terminated|signal 15|Force Terminated")
_MENDABLE = re.compile(r"(?:exit code|with code|EXIT CODE:) 2\b")
_MEMORY = re.compile(r"out[- ]of[- ]memory|oom[-_]kill|\bmem \d+kb exceeded", re.IGNORECASE)
_COMPLAINT = re.compile(
    r"^(?:=>> |\[|)(?:srun|slurm|mpiexec|mpirun|prte|orte|ssh|pbs|proxy:|a daemon|host key|"
    r"permission denied|(?:launch|start|ping)\w* failed on).*$|^.*execvp error.*$",
    re.MULTILINE | re.IGNORECASE,
)
_SERIOUS = re.compile(
    r"error|fatal|fail|unable|exceeded|denied|refused|died|lost|timed? ?out|no such|not found",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r"step aborted|CANCELLED AT|tasks? [\d,-]+: |waiting for job step|_step_signal|process rank"
)
_NOT_LAUNCHED = re.compile(
    r"(?:launch|start|ping)\w* .*failed|connect to host|resolve host|: slurm_|prolog|proxy:",
    re.IGNORECASE,
)
_LAUNCHED_RANK = re.compile(r"task (\d+) launch failed")


@dataclass(frozen=True)
class RankEnding:
    """The end of a rank as its launcher reports it."""

    node: str
    rank: int | None
    what: str

    @property
    def is_killed(self) -> bool:
        """Whether the rank died for a reason other than its launcher."""
        return bool(_KILLED.search(self.what)) and not _TERMINATED.search(self.what)

    @property
    def is_mendable(self) -> bool:
        """Whether the exit status means that the user has to fix something."""
        return bool(_MENDABLE.search(self.what))

    def __str__(self) -> str:
        rank = "a rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} on {self.node}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class LauncherReport:
    """Report of a launcher. ``complaint`` is an error line that no failed rank explains."""

    endings: tuple[RankEnding, ...]
    complaint: str
    not_launched: tuple[str, ...]  # nodes that failed to launch
    is_out_of_memory: bool


def read_launcher_log(log: str, *, nodes: Sequence[str], per_node: int) -> LauncherReport:
    """Parse the launcher's output ``log`` of one launch on ``nodes``."""
    matches = (match for form in _ENDINGS for match in re.finditer(form, log, re.MULTILINE))
    lines = [match[0].strip() for match in _COMPLAINT.finditer(log)]
    lines = [line for line in lines if _SERIOUS.search(line) and not _CONSEQUENCE.search(line)]
    failed = [line for line in lines if _NOT_LAUNCHED.search(line)]
    named = re.findall(r"[\w.-]+", "\n".join(failed))
    for rank in _LAUNCHED_RANK.findall("\n".join(failed)):
        named += nodes[int(rank) // per_node :][:1]
    return LauncherReport(
        endings=tuple(map(_read_ending, sorted(matches, key=re.Match.start))),
        complaint=next(iter([*failed, *lines]), ""),
        not_launched=suspect_nodes(match_nodes(named, nodes), nodes),
        is_out_of_memory=bool(_MEMORY.search(log)),
    )


def _read_ending(match: re.Match[str]) -> RankEnding:
    rank = int(match["rank"]) if match["rank"] else None
    return RankEnding(match["node"], rank, " ".join(match["what"].split()))


def match_nodes(names: Iterable[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that are among ``names``. Domains may differ and are ignored."""
    known = set(map(short_name, names))
    return tuple(node for node in nodes if short_name(node) in known)


def suspect_nodes(named: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the named nodes. If all of several nodes are named, no node is at fault."""
    return () if len(named) == len(nodes) > 1 else tuple(named)
