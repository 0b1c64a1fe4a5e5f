"""The physical side of a cluster's profile: what the planner needs of a machine.

A figure that no source gives is null; a plan that needs it names it and says how to measure
it. Rates are per device; a device is what a rank gets, a tile where a card has two.
"""

from typing import Annotated, Literal

from pydantic import Field

from components.spec.frozen import FrozenMapping
from components.spec.section import Count, Section

Rate = Annotated[float, Field(gt=0)]
Measured = Annotated[tuple[Count, Rate], Field(strict=False)]


class Link(Section):
    """One level of the network, as one device sees it while all devices of its node talk.

    ``peak`` is the vendor's figure for one direction; the other two are measured bus
    bandwidths of large messages (algorithm bandwidth times 2 (n - 1) / n for an all-reduce).
    """

    peak_gigabytes_per_second: Rate | None
    all_reduce_gigabytes_per_second: Rate | None
    all_gather_gigabytes_per_second: Rate | None
    latency_seconds: Rate | None


class Network(Link):
    """The links between nodes.

    ``by_nodes`` lists bus bandwidths of an all-reduce over all devices of so many nodes: they
    fall where many nodes share switches.
    """

    by_nodes: Annotated[tuple[Measured, ...], Field(strict=False)]


class Hardware(Section):
    """One device, its links and its power.

    A product's tiles are dealt to ``compute_units``: multiprocessors, or Xe cores.
    ``gemm`` is what large matrix products reach, ``peak`` what the vendor states.
    ``usable_bytes`` is the most that a run's tensors were seen to take; where it is null, all
    but ``context_bytes`` counts as usable.
    """

    device: str
    memory_bytes: Count
    context_bytes: Count | None
    usable_bytes: Count | None
    peak_teraflops: FrozenMapping[Rate]
    gemm_teraflops: FrozenMapping[Rate]
    compute_units: Count
    memory_gigabytes_per_second: Rate
    inside: Link
    across: Network
    power_watts: Rate | None


class Storage(Section):
    """The file system that checkpoints go to, as all nodes of one job together see it.

    ``peak`` is what the site states of it, for all its users; the other two are measured.
    """

    peak_gigabytes_per_second: Rate | None
    write_gigabytes_per_second: Rate | None
    read_gigabytes_per_second: Rate | None


class Failures(Section):
    """How many hours nodes run, added up, between two failures that end a job."""

    node_hours_between: Rate | None


class Accounting(Section):
    """The unit in which a site counts, and how many of it an hour of a node costs."""

    unit: str
    per_node_hour: Rate


class Queue(Section):
    """A queue's limits: jobs of so many nodes may run so long.

    Jobs are handed to ``route`` where a site sorts them into its queues itself.
    """

    name: str
    fewest_nodes: Count
    most_nodes: Count
    longest_hours: Rate
    debug: bool = False
    route: str | None = None


Machine = Hardware | Literal["none"]
Bill = Accounting | Literal["none"]
