"""Virtual network link of a set rate between two ranks on one host.

Two Linux network namespaces are connected by a pair of virtual devices; a token bucket limits
the rate of each device. This needs root and Linux; otherwise only the loopback is available.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# The bucket size is the burst; it is small, so that short messages are delayed too.
_BURST, _LATENCY = "256kb", "200ms"


@dataclass(frozen=True)
class RankHost:
    """How to start a rank: a command prefix and additional environment variables."""

    words: Sequence[str]
    environment: Mapping[str, str]


def can_create_link() -> bool:
    """Return whether this process can create namespaces and devices."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))


LOOPBACK = (RankHost((), {"GLOO_SOCKET_IFNAME": "lo"}),) * 2


@contextmanager
def create_link(gigabits: float) -> Iterator[tuple[RankHost, RankHost]]:
    """Create two namespaces and a link with a rate per direction; remove them at the end.

    Raises:
        subprocess.CalledProcessError: the kernel lacks a feature.
    """
    namespaces = [f"kochbuch-{os.getpid()}-{end}" for end in range(2)]
    devices = ["end0", "end1"]
    created: list[str] = []
    try:
        for space in namespaces:
            _run("ip", "netns", "add", space)
            created.append(space)
        peers = (*("type", "veth", "peer", "name", devices[1]), "netns", namespaces[1])
        _run("ip", "link", "add", devices[0], "netns", namespaces[0], *peers)
        for end, (space, device) in enumerate(zip(namespaces, devices, strict=True)):
            _run("ip", "-n", space, "address", "add", f"10.77.0.{end + 1}/24", "dev", device)
            _run("ip", "-n", space, "link", "set", device, "up")
            bucket = ("tbf", "rate", f"{gigabits}gbit", "burst", _BURST, "latency", _LATENCY)
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *bucket)
        ends = zip(namespaces, devices, strict=True)
        first, second = (
            RankHost(("ip", "netns", "exec", space), {"GLOO_SOCKET_IFNAME": device})
            for space, device in ends
        )
        yield first, second
    finally:
        for space in created:  # removes the devices too
            _run("ip", "netns", "delete", space)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)
