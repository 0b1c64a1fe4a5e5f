"""Settings of a job script, computed before its template sees them."""

import shlex
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cluster import container, script
from cluster.clients import scheduler_for
from cluster.user import User
from components.config.recipe import Recipe
from components.config.schema.cluster import QueueSection, Site, Variable
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.planner.queues import most_chained, queue_remark, submitted_jobs, with_nodes
from components.planner.result import Plan
from components.preflight.verdict import HOSTS
from components.train.ranks import allocator_settings, cache_variables

ON_NODE = '"${on_node[@]}"'  # what a script sets for who imports from the node's copies
MOST_JOBS = 1_000  # of one array, by SLURM's default MaxArraySize


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One job of a run; texts in angle brackets stand for what the user has not said."""

    name: str
    cluster: Cluster
    site: Site
    user: User
    plan: Plan | None  # None: the cluster's profile has no hardware figures
    nodes: int  # with the spare ones
    restarts: int  # how often the job launches its ranks again
    preflight_seconds: int | None  # what looks at the nodes is ended then; None: nothing does
    queue: str
    limits: QueueSection | None  # of the queue, where the profile knows it
    account: str | None
    walltime_seconds: int
    lead_seconds: int  # before the wall the run is told to stop: a step and a checkpoint fit in
    jobs: int  # of its chain, 1 where the queue takes none
    needed_jobs: int | None  # how many such jobs the run needs at most, by the plan or the user
    venv: str | None
    python: str
    host_python: str  # for what talks to the scheduler, which no image has
    node_folder: str  # below it is what a job keeps on its nodes
    local_folder: str | None  # below it are local copies of checkpoints
    caches: tuple[str, ...]  # variables that name folders there
    allocator: str | None  # settings of torch's, where nobody has any
    repository: str
    run: str
    container_text: str | None  # of the file by which a launcher starts the image
    container_path: str
    on_each: tuple[str, ...]  # words that start one task a node
    has_children: bool  # which its jobs submit when their checkpoints are there
    missing: tuple[RecipeError, ...]  # what the user has to say, the file and the line to write
    notes: tuple[str, ...]

    @property
    def training_seconds(self) -> int:
        """Count those until the run is told to stop."""
        return self.walltime_seconds - self.lead_seconds

    @property
    def directives(self) -> tuple[str, ...]:
        """Give what stands in the script's head as it is: the site's lines, and the queue's."""
        return (*self.site.directives, *(self.limits.options if self.limits else ()))

    @property
    def runs_at_once(self) -> int | None:
        """Count such runs that the queue takes of one user; None: nobody knows a limit."""
        most = self.limits.submitted if self.limits else None
        return None if most is None else max(1, most // self.submitted_jobs)

    @property
    def submitted_jobs(self) -> int:
        """Count the run's jobs that wait or run at a time."""
        return submitted_jobs(self.cluster, self.jobs)

    @property
    def variables(self) -> dict[str, Variable]:
        """Give the site's variables by the names under which the script exports them."""
        return script.exported(self.site, self.user)

    @property
    def rank_words(self) -> str:
        """Give what starts before a rank's Python: what is taken away, set, and wraps it."""
        words = []
        if self.user.image is not None:  # which has the host's variables, unless they are unset
            sides = self.site.environment.items()
            words += [f"-u {name}" for name, variable in sides if variable.side == "host"]
            words = ["env", *words] if words else []
        if own := self.site.rank_environment:
            sets = [f"{name}={script.word(variable.value)}" for name, variable in own.items()]
            words += ["bash", "-c", shlex.quote(f'export {" ".join(sets)}; exec "$@"'), "rank"]
        return "".join(f"{word} " for word in (*words, *self.site.rank_wrapper))

    @property
    def own_python(self) -> str:
        """Start Python from the node's copy of the environment, or in its copy of the image."""
        if self.user.image is None:
            return '"$node/venv/bin/python"'
        return self.python.replace(self.user.image, '"$node/image"')

    @property
    def task_python(self) -> str:
        """Start Python in a task, which may be in the image already, by a file."""
        return "python" if self.container_text else self.python

    @property
    def in_container(self) -> str:
        """Give what a launcher is told of the image, with a space behind it."""
        return f"{container.IN_CONTAINER} " if self.container_text else ""

    @property
    def ranks_python(self) -> str:
        shared = self.cluster.imports == "shared"
        python = self.task_python if shared else f"{ON_NODE} {self.own_python}"
        return f"{self.rank_words}{python}"

    @property
    def preflight_python(self) -> str:
        """Start it on a node without a copy too, from the shared one, to say what is wrong."""
        if self.cluster.imports == "shared":
            return self.task_python
        found = "python" if self.user.image is None else self.own_python
        return f'{ON_NODE} PYTHONPATH="$node/code:$PYTHONPATH" {found}'

    @property
    def walltime(self) -> str:
        return script.clock(self.walltime_seconds)

    def check_complete(self) -> None:
        """Refuse a script in which something stands in angle brackets: no scheduler takes it.

        Raises:
            RecipeError: the first of what is missing.
        """
        for error in self.missing:
            raise error


def _needed_hours(plan: Plan | None) -> float | None:
    """Return the hours of the whole run by the plan's upper bound."""
    if plan is None or plan.bill is None:
        return None
    return plan.bill.days * 24 * (1 + plan.error_fraction)


def job_settings(
    recipe: Recipe, user: User, *, repository: Path, run: Path, node: str | None = None
) -> JobSettings:
    """Compute the job of ``recipe`` that works in the folder ``run``, a ``node`` of a tree.

    Raises:
        RecipeError: the cluster has no scheduler or its profile no site, no queue takes the
            nodes or the hours, a path cannot stand in a script, or the image's file is no use.
    """
    cluster, site = recipe.cluster, script.site_of(recipe)
    container.check_container(cluster, site, user)
    plan = None if isinstance(cluster.hardware, str) else plan_recipe(recipe)
    needed_hours = _needed_hours(plan)
    nodes = cluster.nodes + cluster.spare_nodes
    asked = with_nodes(cluster, nodes)
    slot = script.choose_queue(asked, wanted=user.queue, needed_hours=needed_hours)
    walltime = round(slot.hours * script.HOUR)
    lead = _lead_seconds(cluster, site, plan, walltime)
    borders, seconds = len(recipe.phases), walltime - lead
    jobs, needed, notes = _chain(asked, slot.queue, needed_hours, seconds, borders)
    account = f"{user.account or '<account>'}{site.account_suffix}"
    venv, python = script.python_of(site, user, repository)
    # Who gathers is ready before the launcher is ended, if a node hangs.
    rules, spare = cluster.preflight, script.MINUTE
    preflight = None if isinstance(rules, str) else ceil(rules.longest_seconds) + spare
    # A job that leaves nodes out, or has lost one, has others than this script knows.
    scheduler, each = scheduler_for(cluster), f"$(wc -l < $run/{HOSTS})"
    return JobSettings(
        name=script.job_name(recipe, node),
        cluster=cluster,
        site=site,
        user=user,
        plan=plan,
        nodes=nodes,
        restarts=recipe.watchdog.restarts,
        preflight_seconds=preflight,
        queue=slot.name or "<queue>",
        limits=slot.queue,
        account=account if user.account or site.account == "required" else None,
        walltime_seconds=walltime,
        lead_seconds=lead,
        jobs=jobs,
        needed_jobs=needed,
        venv=venv,
        python=python,
        host_python=script.host_python_of(user, repository),
        node_folder=script.plain(site.node_folder, "cluster.site.node_folder"),
        local_folder=_local_folder(recipe),
        caches=cache_variables(cluster.device),
        allocator=allocator_settings(cluster.device),
        repository=script.plain(str(repository), "repository"),
        run=script.output_folder(run, "run", cluster.scheduler),
        container_text=container.container_text(site, user, str(repository)),
        container_path=container.container_path(run / "jobs"),
        on_each=tuple(scheduler.on_each(Path("$run", HOSTS), each, site.launch)),
        has_children=bool(recipe.children),
        missing=tuple(script.missing_of(recipe, user, slot.name)),
        notes=(*notes, *_cores_note(cluster, site)),
    )


def _cores_note(cluster: Cluster, site: Site) -> tuple[str, ...]:
    """Say that each rank gets one core of its node, where nothing asks Slurm for more."""
    words = (*site.directives, *site.launch)
    more = any(word.startswith(("--cpus-per-", "--exclusive")) for word in words)
    told = cluster.scheduler != "slurm" or site.binding.cores_per_rank or more
    return () if told else (_ONE_CORE,)


def _local_folder(recipe: Recipe) -> str | None:
    local = recipe.checkpoint.local
    return (
        None
        if isinstance(local, str)
        else script.plain(local.folder, "checkpoint.local.folder")
    )


def render(settings: JobSettings) -> str:
    """Return the job script, with its last newline."""
    return script.fill(f"{settings.cluster.scheduler}.sh.j2", settings)


def run_folder(recipe: Recipe, user: User, named: Path | None, repository: Path) -> Path:
    """Return the absolute folder of the run: the one named, else one below the user's runs."""
    runs = Path(user.runs or repository / "runs")
    folder = (named or runs / f"{recipe.name}-{recipe.scale.name}").absolute()
    if len(bytes(folder)) > 4095 or any(len(part.encode()) > 255 for part in folder.parts):
        raise RecipeError("run", f"{str(folder)[:60]}...: too long", "choose a shorter path")
    return folder


def _lead_seconds(cluster: Cluster, site: Site, plan: Plan | None, walltime: int) -> int:
    """Add a step to the site's time for saving: a run stops only after the step it is in."""
    step = 0.0
    if plan is not None and plan.time is not None:
        step = plan.time.total * (1 + plan.error_fraction)
    lead = site.spare_seconds + ceil(step / script.MINUTE) * script.MINUTE
    if lead >= walltime:
        longer = "leave cluster.smoke out" if cluster.smoke else "ask for more hours"
        raise RecipeError(
            "cluster.hours",
            f"{walltime:,} seconds, but a step and a checkpoint may take {lead:,} of them",
            f"{longer}, or set cluster.site.spare_seconds=...",
        )
    return lead


def _chain(
    cluster: Cluster,
    queue: QueueSection | None,
    needed_hours: float | None,
    job_seconds: int,
    borders: int,
) -> tuple[int, int | None, tuple[str, ...]]:
    """Count the jobs of the chain and those of the whole run, with notes.

    At each of the ``borders`` between phases of the run a job ends before its time. What is
    left of a chain when the run has finished ends at once.

    Raises:
        RecipeError: the user wants more jobs than the queue takes.
    """
    if cluster.smoke:
        return 1, 1, ()
    most, named, needed = most_chained(cluster, queue), cluster.jobs, None
    if not isinstance(named, str):
        needed = named
    elif needed_hours is not None:
        needed = max(1, ceil(needed_hours * script.HOUR / job_seconds)) + borders
    remark = queue_remark(cluster, queue, needed) if queue else None
    if remark is not None and not isinstance(named, str) and most is not None and named > most:
        ways = f"set cluster.jobs={most}; {remark.remedy}"
        raise RecipeError("cluster.jobs", f"{named:,}, but {remark.problem}", ways)
    notes = () if remark is None else (f"{remark.path}: {remark.problem}; {remark.remedy}",)
    if needed is None:
        return 1 + borders, None, (*notes, _UNPLANNED)
    if most is not None and needed > most:
        return most, needed, notes
    if needed > MOST_JOBS and isinstance(named, str):
        return MOST_JOBS, needed, (*notes, _LONG.format(needed=needed, most=MOST_JOBS))
    return needed, needed, notes


_ONE_CORE = (
    "cluster.site.binding.cores_per_rank: not set, so Slurm gives each rank one core; set it, "
    "or add --exclusive to cluster.site.directives"
)
_UNPLANNED = (
    "cluster.jobs: the plan lacks figures of this cluster, so nobody knows how many jobs the "
    "run needs; one is written, set cluster.jobs=... for a chain"
)
_LONG = (
    "cluster.jobs: the run needs {needed:,} such jobs, an array has {most:,} at most; set "
    "cluster.hours=... or take more nodes"
)
