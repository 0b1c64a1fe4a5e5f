"""Schema of a cluster's profile: its hardware, its site, and what a node must show.

A figure that the profile's sources lack is null; a plan that needs it says how to measure it.
Rates are per device; a device is what a rank gets, a tile where a card has two. What belongs to
one user (account, paths, image) is not here.
"""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, GetPydanticSchema, PlainSerializer

from components.config.schema import types
from components.config.schema.types import (
    Count,
    FrozenMapping,
    OrNone,
    Section,
    Words,
    freeze,
    thaw,
)

Rate = Annotated[float, Field(gt=0)]
PRECISIONS = ["bfloat16", "float8", "float16", "float32", "float64"]
RateByPrecision = Annotated[
    Mapping[
        Annotated[
            str, GetPydanticSchema(lambda *_: {"type": "literal", "expected": PRECISIONS})
        ],
        Rate,
    ],
    AfterValidator(freeze),
    PlainSerializer(thaw, return_type=dict),
]
Measured = Annotated[tuple[Count, Rate], Field(strict=False)]


class NetworkLink(Section):
    """One level of the network, as one device sees it while all devices of its node talk.

    ``peak`` is the vendor's figure for one direction; the other two are measured bus
    bandwidths of large messages (algorithm bandwidth times 2 (n - 1) / n for an all-reduce).
    """

    peak_gigabytes_per_second: Rate | None
    all_reduce_gigabytes_per_second: Rate | None
    all_gather_gigabytes_per_second: Rate | None
    latency_seconds: Rate | None


class Network(NetworkLink):
    """Links between nodes; ``by_nodes``: the bus bandwidth of an all-reduce over so many."""

    by_nodes: Annotated[tuple[Measured, ...], Field(strict=False)]


class Hardware(Section):
    """One device, its links and its power.

    A product's tiles are dealt to ``compute_units``: multiprocessors, or Xe cores.
    ``gemm`` is what large matrix products reach, ``peak`` what the vendor states.
    ``power_watts`` are a card's, which is ``devices_per_card`` devices. ``usable_bytes`` is the
    most that a run's tensors were seen to take; where it is null, all but ``context_bytes``
    counts as usable.
    """

    device: str
    memory_bytes: Count
    context_bytes: Count | None
    usable_bytes: Count | None
    peak_teraflops: RateByPrecision
    gemm_teraflops: RateByPrecision
    compute_units: Count
    memory_gigabytes_per_second: Rate
    inside: NetworkLink
    across: Network
    power_watts: Rate | None
    devices_per_card: Count = 1

    @property
    def device_watts(self) -> float | None:
        """A device's share of its card's power."""
        return None if self.power_watts is None else self.power_watts / self.devices_per_card


class Storage(Section):
    """The file system of checkpoints: the site's ``peak``, and what one job measured."""

    peak_gigabytes_per_second: Rate | None
    write_gigabytes_per_second: Rate | None
    read_gigabytes_per_second: Rate | None


class Failures(Section):
    """How many hours nodes run, added up, between two failures that end a job."""

    node_hours_between: Rate | None


class Electricity(Section):
    """All of a site's power over that of its machines (PUE), and what a kWh of its grid emits.

    The CO2 equivalent of a kWh is that of a place and a year, as its source counts it.
    """

    power_usage_effectiveness: Annotated[float, Field(ge=1)] | None
    grams_co2e_per_kwh: Annotated[float, Field(ge=0)] | None


class Accounting(Section):
    """The unit in which a site counts, and how many of it an hour of a node costs."""

    unit: str
    per_node_hour: Rate


class QueueSection(Section):
    """A queue's limits; jobs go to ``route`` where a site sorts them into queues itself.

    A job has ``longest_hours``, or less where its nodes share ``node_minutes``. Jobs are
    counted by user and by project: those that run, and those ``submitted``, which run or wait
    (Slurm: MaxJobs, MaxSubmitJobs). Without ``chain`` a site forbids that a job's successor
    waits while it runs. ``by_request`` says who grants the queue: it is taken where no other
    fits, or by name. ``options`` are further directives of its jobs, as ``--qos=NAME``.
    """

    name: str
    fewest_nodes: Count
    most_nodes: Count
    longest_hours: Rate
    debug: bool = False
    route: str | None = None
    node_minutes: Rate | None = None
    submitted_per_user: Count | None = None
    running_per_user: Count | None = None
    submitted_per_project: Count | None = None
    running_per_project: Count | None = None
    chain: bool = True
    by_request: str | None = None
    options: Words = ()

    @property
    def submitted(self) -> int | None:
        """How many jobs one user may have there, running or waiting; None: nobody says."""
        limits = (self.submitted_per_user, self.submitted_per_project)
        return min((one for one in limits if one is not None), default=None)

    def hours_on(self, nodes: int) -> float:
        """How long a job of so many nodes may run."""
        shared = inf if self.node_minutes is None else self.node_minutes / 60 / nodes
        return min(self.longest_hours, shared)


Machine = OrNone[Hardware]

# Of each kind of device, the variable that hides others of its node from torch.
DEVICE_MASKS = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "ROCR_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}


class Variable(Section):
    """An environment variable's value, and why the site needs it.

    In a container there are two sides: what is for the ``host`` (modules, the launcher) is
    taken away from the ranks, what is for the ``image`` is set inside it alone.
    """

    value: str
    reason: str
    side: Literal["both", "host", "image"] = "both"


class SetupStep(Section):
    """A line of shell that a site needs after its modules, and why."""

    run: str
    reason: str


class ContainerFile(Section):
    """What stands in a file by which ``srun --environment`` starts an image.

    ``mounts`` are folders of the host that it sees, ``annotations`` what the site's hooks read.
    """

    mounts: Words
    annotations: FrozenMapping[str]


class Binding(Section):
    """Cores of a rank, as the launcher's argument or null, and in words its network port."""

    cores_per_rank: Count | None
    cores: str | None
    ports: str


class FileSystem(Section):
    """A file system by its name in a shell, what it is for, and its limits as far as known."""

    path: str
    purpose: str
    limits: str | None


class Site(Section):
    """Directives, modules, environment, binding and launch of one site.

    ``directives`` follow ``#SBATCH`` or ``#PBS`` as they stand, ``modules`` follow ``module``,
    ``launch`` follows ``srun`` or ``mpiexec``. ``queue`` is used where the profile lists no
    ``queues``. ``node_resources`` is what a PBS job asks of each node, as ``ncpus=48:ngpus=6``.
    ``host_suffix`` turns a node's name into the one under which other nodes reach it.
    ``node_folder`` is on each node its own, for what a job keeps there while it runs.
    ``spare_seconds`` are what saving a checkpoint may take before the wall. ``python`` is the
    version that the modules bring, null if they bring none or nobody has said; ``provides`` are
    packages that they bring, which no environment installs over. ``login_shell`` starts the
    script by ``bash -l``. ``no_proxy`` is what is reached past the ``proxy``. Each rank expands
    ``rank_environment`` for itself, as ``$SLURM_LOCALID``, and is started by ``rank_wrapper``.
    ``architecture`` is that of the nodes, as ``uname -m`` has it. An image is started by
    ``container``, or by a file that the job's script writes (``container_file``).
    """

    queue_option: Literal["--partition", "--qos", "-q"]
    queue: str | None
    account: Literal["required", "optional"]
    account_suffix: str
    node_resources: str | None
    directives: Words
    modules: Words
    python: str | None
    provides: Words
    setup: Annotated[tuple[SetupStep, ...], Field(strict=False)]
    container: str | None
    environment: FrozenMapping[Variable]
    binding: Binding
    launch: Words
    host_suffix: str
    node_folder: str
    spare_seconds: Count
    internet: bool | None
    proxy: str | None
    file_systems: FrozenMapping[FileSystem]
    login_shell: bool = False
    no_proxy: str | None = None
    rank_environment: FrozenMapping[Variable] = Field(default_factory=lambda: freeze({}))
    rank_wrapper: Words = ()
    architecture: Literal["x86_64", "aarch64"] = "x86_64"
    container_file: ContainerFile | None = None


class Preflight(Section):
    """Limits by which a node is judged.

    Who does not answer within ``answer_seconds`` is bad, and so is a link that takes longer
    than ``link_seconds``. A product and a link reach a fraction of what the profile says or, as
    to products, of what half of the nodes reach. Of each device's memory ``memory_fraction`` is
    free. Clocks differ by ``clock_seconds`` at most. The run's folder has room for so many
    ``checkpoints``, the folder for temporary files for ``temporary_bytes``. Of the data every
    file's size is compared, and the hashes of as many as have ``hashed_bytes`` together.
    """

    answer_seconds: types.Seconds
    link_seconds: types.Seconds
    product_fraction: types.Fraction
    link_fraction: types.Fraction
    memory_fraction: types.Fraction
    clock_seconds: types.Seconds
    checkpoints: Annotated[int, Field(ge=0)]
    temporary_bytes: Count
    hashed_bytes: Annotated[int, Field(ge=0)]

    @property
    def longest_seconds(self) -> float:
        """How long all of it may take, whatever hangs."""
        # Three rounds of pairs: the second waits twice as long as the first, the third thrice.
        return self.answer_seconds + (1 + 2 + 3) * self.link_seconds
