"""The other side of a cluster's profile: what a job script of that site must say.

Every value comes from the site's documentation or from scripts that ran there; the profiles
name their sources in comments. What belongs to one user (account, paths, image) is not here.
"""

from typing import Annotated, Literal

from pydantic import Field

from components.spec.frozen import FrozenMapping
from components.spec.section import Count, Section

Words = Annotated[tuple[str, ...], Field(strict=False)]


class Variable(Section):
    """An environment variable's value, and why the site needs it."""

    value: str
    reason: str


class Step(Section):
    """A line of shell that a site needs after its modules, and why."""

    run: str
    reason: str


class Binding(Section):
    """Which cores and which network port a rank gets.

    ``cores`` is the launcher's own binding argument, null where the scheduler's default is
    right; ``ports`` says in words who gives a rank its port.
    """

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
    packages that they bring, which no environment installs over.
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
    setup: Annotated[tuple[Step, ...], Field(strict=False)]
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


JobSite = Site | Literal["none"]
