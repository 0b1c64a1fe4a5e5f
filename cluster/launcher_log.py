"""What a launcher's output says: ranks that died, nodes that started none, other complaints.

Launchers are srun, Cray's PALS, Hydra (MPICH, Intel MPI) and Open MPI. Their daemons, ssh and
PBS write into the same output.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# srun's `srun: error: NODE: task 5: Killed`, PALS's `NODE: rank 5 died from signal 9`, then
# those of Open MPI and Hydra. MPICH's Hydra names no rank.
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
_ASKED_TO_END = re.compile(r"Terminated|signal 15|Force Terminated")
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
    """How a rank ended, as its launcher says it."""

    node: str
    rank: int | None
    what: str

    @property
    def is_killed(self) -> bool:
        """Whether it died, and not because its launcher ended it."""
        return bool(_KILLED.search(self.what)) and not _ASKED_TO_END.search(self.what)

    @property
    def is_mendable(self) -> bool:
        """Whether its exit status says that a user has to mend something."""
        return bool(_MENDABLE.search(self.what))

    def __str__(self) -> str:
        rank = "a rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} on {self.node}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class LauncherReport:
    """What a launcher said; no failed rank explains ``complaint``, one line."""

    endings: tuple[RankEnding, ...]
    complaint: str
    not_launched: tuple[str, ...]  # nodes that are to blame for a launch that failed
    is_out_of_memory: bool


def read_launcher_log(log: str, *, nodes: Sequence[str], per_node: int) -> LauncherReport:
    """Read the output of one launch on these ``nodes``."""
    found = (m for one in _ENDINGS for m in re.finditer(one, log, re.MULTILINE))
    endings = [
        RankEnding(
            m["node"], int(m["rank"]) if m["rank"] else None, " ".join(m["what"].split())
        )
        for m in sorted(found, key=re.Match.start)
    ]
    lines = [m[0].strip() for m in _COMPLAINT.finditer(log)]
    lines = [one for one in lines if _SERIOUS.search(one) and not _CONSEQUENCE.search(one)]
    failed = [one for one in lines if _NOT_LAUNCHED.search(one)]
    named = [word for line in failed for word in re.findall(r"[\w.-]+", line)]
    named += [
        node
        for rank in _LAUNCHED_RANK.findall("\n".join(failed))
        for node in nodes[int(rank) // per_node :][:1]
    ]
    return LauncherReport(
        endings=tuple(endings),
        complaint=next(iter((*failed, *lines)), ""),
        not_launched=suspected(as_listed(named, nodes), nodes),
        is_out_of_memory=bool(_MEMORY.search(log)),
    )


def as_listed(names: Iterable[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Give nodes the names that the scheduler knows: some call themselves by their domain."""
    known = {name.partition(".")[0] for name in names}
    return tuple(node for node in nodes if node.partition(".")[0] in known)


def suspected(named: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Suspect the nodes that are named, unless these are all of several: it is none of them."""
    return () if len(named) == len(nodes) > 1 else tuple(named)
