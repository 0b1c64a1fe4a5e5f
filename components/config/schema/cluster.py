"""Schema of a cluster profile: hardware, site, and the limits of the node preflight.

A figure that the sources of a profile lack is null. Rates are per device. A device is what one
rank gets: a tile if a card has two. Settings of one user (account, paths, image) are not part
of a profile.
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
    WordTuple,
    to_frozen,
    to_plain,
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
    AfterValidator(to_frozen),
    PlainSerializer(to_plain, return_type=dict),
]
Measured = Annotated[tuple[Count, Rate], Field(strict=False)]


class NetworkLink(Section):
    """One network level, per device, while all devices of the node communicate.

    ``peak`` is the vendor's figure for one direction. The others are measured bus bandwidths of
    large messages (all-reduce: algorithm bandwidth times 2 (n - 1) / n).
    """

    peak_gigabytes_per_second: Rate | None
    all_reduce_gigabytes_per_second: Rate | None
    all_gather_gigabytes_per_second: Rate | None
    latency_seconds: Rate | None


class Network(NetworkLink):
    """Links between nodes; ``by_nodes`` lists (nodes, all-reduce bus bandwidth).

    If a pipeline crosses nodes, each layer takes ``crossing_layer_seconds`` more per tensor
    rank, forward and backward together.
    """

    by_nodes: Annotated[tuple[Measured, ...], Field(strict=False)]
    crossing_layer_seconds: Annotated[
        Rate | None, Field(exclude_if=lambda seconds: seconds is None)
    ] = None


class Hardware(Section):
    """Hardware of one device: memory, rates, links and power.

    ``compute_units`` (multiprocessors or Xe cores) share the tiles of a matrix product.
    ``gemm`` is the measured rate of large matrix products, ``peak`` the vendor's figure.
    ``power_watts`` is the power of one card. ``usable_bytes`` is the largest measured size of a
    run's tensors; null means all memory except ``context_bytes``.
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
        """Power of one device: the card's power divided by its devices."""
        return None if self.power_watts is None else self.power_watts / self.devices_per_card


class Storage(Section):
    """File system of checkpoints: the site's ``peak`` and the rates that one job measured."""

    peak_gigabytes_per_second: Rate | None
    write_gigabytes_per_second: Rate | None
    read_gigabytes_per_second: Rate | None


class Failures(Section):
    """Mean node hours between two failures that end a job."""

    node_hours_between: Rate | None


class Electricity(Section):
    """Power usage effectiveness (PUE) of a site and CO2 equivalent per kWh of its grid.

    PUE is the power of the whole site divided by the power of its machines. The CO2 equivalent
    is for one place and one year, by the method of its source.
    """

    power_usage_effectiveness: Annotated[float, Field(ge=1)] | None
    grams_co2e_per_kwh: Annotated[float, Field(ge=0)] | None


class Accounting(Section):
    """Accounting unit of a site and the price of one node hour in that unit."""

    unit: str
    per_node_hour: Rate


class QueueSection(Section):
    """Limits of a queue.

    If a site sorts jobs into queues itself, jobs are submitted to ``route``. A job runs at most
    ``longest_hours``, or ``node_minutes`` divided by its nodes if that is less. ``submitted``
    jobs run or wait (Slurm: MaxSubmitJobs; ``running`` is MaxJobs). With ``chain: false`` a
    successor may not wait in the queue while its job runs. ``by_request`` states who grants the
    queue, which is chosen only by name or if no other queue fits. ``options`` are further
    directives, such as ``--qos=NAME``.
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
    options: WordTuple = ()

    @property
    def max_submitted_jobs(self) -> int | None:
        """Most running or waiting jobs of one user; None if the limit is unknown."""
        limits = (self.submitted_per_user, self.submitted_per_project)
        return min((limit for limit in limits if limit is not None), default=None)

    def hours_on(self, nodes: int) -> float:
        """Return the longest run time, in hours, of a job on ``nodes`` nodes."""
        shared = inf if self.node_minutes is None else self.node_minutes / 60 / nodes
        return min(self.longest_hours, shared)


Machine = OrNone[Hardware]

# For each kind of device, the variable that limits the devices of a node that torch sees.
DEVICE_MASKS = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "ROCR_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}


class Variable(Section):
    """Value of an environment variable and the reason why the site needs it.

    If ranks run in a container, a variable for the ``host`` (modules, the launcher) is unset
    for the ranks, and a variable for the ``image`` is set only inside the container.
    """

    value: str
    reason: str
    side: Literal["both", "host", "image"] = "both"


class SetupStep(Section):
    """Shell line that a site needs after its modules, and the reason."""

    run: str
    reason: str


class ContainerFile(Section):
    """File for ``srun --environment``: mounted host folders, and annotations for hooks."""

    mounts: WordTuple
    annotations: FrozenMapping[str]


class Binding(Section):
    """Cores of a rank, as a launcher argument or null, and a text on its network port."""

    cores_per_rank: Count | None
    cores: str | None
    ports: str


class FileSystem(Section):
    """File system: its path in a shell, its purpose, and its known limits."""

    path: str
    purpose: str
    limits: str | None


class Site(Section):
    """Directives, modules, environment, binding and launch of one site.

    ``directives`` follow ``#SBATCH`` or ``#PBS`` unchanged, ``modules`` follow ``module``,
    ``launch`` follows ``srun`` or ``mpiexec``. ``queue`` is used if the profile lists no
    ``queues``. ``node_resources`` is the request of a PBS job per node, for example
    ``ncpus=48:ngpus=6``. Other nodes reach a node under its name plus ``host_suffix``.
    ``node_folder`` is local to each node. ``spare_seconds`` before the end of the wall time are
    for saving a checkpoint. ``python`` is the version that the modules provide, null if none or
    unknown; no environment overwrites the packages that they ``provide``. ``login_shell``
    starts the script with ``bash -l``. Hosts in ``no_proxy`` are reached without the ``proxy``.
    Each rank expands ``rank_environment`` itself (for example ``$SLURM_LOCALID``) and is
    started by ``rank_wrapper``. ``architecture`` is the output of ``uname -m`` on the nodes. An
    image is started by the command ``container`` or from the file ``container_file``.
    """

    queue_option: Literal["--partition", "--qos", "-q"]
    queue: str | None
    account: Literal["required", "optional"]
    account_suffix: str
    node_resources: str | None
    directives: WordTuple
    modules: WordTuple
    python: str | None
    provides: WordTuple
    setup: Annotated[tuple[SetupStep, ...], Field(strict=False)]
    container: str | None
    environment: FrozenMapping[Variable]
    binding: Binding
    launch: WordTuple
    host_suffix: str
    node_folder: str
    spare_seconds: Count
    internet: bool | None
    proxy: str | None
    file_systems: FrozenMapping[FileSystem]
    login_shell: bool = False
    no_proxy: str | None = None
    rank_environment: FrozenMapping[Variable] = Field(default_factory=lambda: to_frozen({}))
    rank_wrapper: WordTuple = ()
    architecture: Literal["x86_64", "aarch64"] = "x86_64"
    container_file: ContainerFile | None = None


class Preflight(Section):
    """Limits of the preflight, which checks nodes before ranks start.

    A node must answer within ``answer_seconds``, a link within ``link_seconds``. Matrix
    products and links must reach a fraction of the profile's rate or, for products, of the
    median over nodes. ``memory_fraction`` of each device's memory must be free. Clocks differ
    by at most ``clock_seconds``. The run folder needs space for ``checkpoints`` checkpoints,
    the folder of temporary files ``temporary_bytes``. The sizes of all data files are compared,
    and the hashes of files with ``hashed_bytes`` in total.
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
        """Upper limit of the preflight's run time, even if a node or link hangs."""
        # Three rounds of pairs wait one, two and three times ``link_seconds``.
        return self.answer_seconds + (1 + 2 + 3) * self.link_seconds
