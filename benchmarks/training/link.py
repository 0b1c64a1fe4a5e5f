"""Two places on one host with a link of a chosen speed between them.

Linux network namespaces joined by a pair of virtual devices, each of which a token bucket keeps
to a rate. It takes root; without it, or another system, there is only the host's own loopback.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# A bucket holds what may leave at once: few enough bytes that a short message is held up, too.
_BURST, _LATENCY = "256kb", "200ms"


@dataclass(frozen=True)
class ProcessPlace:
    """Where a process is started: words before its own, and its environment's further ones."""

    words: Sequence[str]
    environment: Mapping[str, str]


def can_link() -> bool:
    """Whether this process may make namespaces and devices."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))


LOOPBACK = (ProcessPlace((), {"GLOO_SOCKET_IFNAME": "lo"}),) * 2


@contextmanager
def linked(gigabits: float) -> Iterator[tuple[ProcessPlace, ProcessPlace]]:
    """Make both places and the link, of so many Gbit/s each way, and remove them.

    Raises:
        subprocess.CalledProcessError: the kernel lacks a part of it.
    """
    spaces = [f"kochbuch-{os.getpid()}-{end}" for end in range(2)]
    devices = ["end0", "end1"]
    made: list[str] = []
    try:
        for space in spaces:
            _run("ip", "netns", "add", space)
            made.append(space)
        peers = (*("type", "veth", "peer", "name", devices[1]), "netns", spaces[1])
        _run("ip", "link", "add", devices[0], "netns", spaces[0], *peers)
        for end, (space, device) in enumerate(zip(spaces, devices, strict=True)):
            _run("ip", "-n", space, "address", "add", f"10.77.0.{end + 1}/24", "dev", device)
            _run("ip", "-n", space, "link", "set", device, "up")
            bucket = ("tbf", "rate", f"{gigabits}gbit", "burst", _BURST, "latency", _LATENCY)
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *bucket)
        ends = zip(spaces, devices, strict=True)
        first, second = (
            ProcessPlace(("ip", "netns", "exec", space), {"GLOO_SOCKET_IFNAME": device})
            for space, device in ends
        )
        yield first, second
    finally:
        for space in made:  # devices go with their place
            _run("ip", "netns", "delete", space)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
