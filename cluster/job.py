"""Settings of a job script, computed before the template is rendered."""

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

ON_NODE = '"${on_node[@]}"'  # environment for processes that import from the node's copies
MOST_JOBS = 1_000  # per array, from Slurm's default MaxArraySize


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Settings of one job of a run. Angle brackets mark values that the user has not set."""

    name: str
    recipe: Recipe
    cluster: Cluster
    site: Site
    user: User
    plan: Plan | None  # None: the cluster's profile has no hardware figures
    nodes: int  # including spare nodes
    preflight_seconds: int | None  # timeout of the node checks; None: no preflight
    queue: str
    limits: QueueSection | None  # of the queue, if it is in the profile
    account: str | None
    walltime_seconds: int
    lead_seconds: int  # from the stop signal to the walltime limit: a step and a checkpoint
    jobs: int  # in the chain; 1 if the queue takes no chain
    needed_jobs: int | None  # upper bound for the run, from the plan or the user
    venv: str | None
    python: str
    host_python: str  # for commands that call the scheduler, which images lack
    node_folder: str  # parent of the job's folder on each node
    local_folder: str | None  # parent of local copies of checkpoints
    caches: tuple[str, ...]  # variables that name cache folders on the node
    allocator: str | None  # settings of torch's allocator, unless already set
    repository: str
    run: str
    container_text: str | None  # text of the file by which Slurm starts the image
    container_path: str
    on_each: tuple[str, ...]  # words that start one task per node
    missing: tuple[RecipeError, ...]  # values the user must set, with the file and the line
    notes: tuple[str, ...]

    @property
    def training_seconds(self) -> int:
        """Seconds from the job's start to the stop signal."""
        return self.walltime_seconds - self.lead_seconds

    @property
    def directives(self) -> tuple[str, ...]:
        """Verbatim lines of the script's header: site directives and queue options."""
        return (*self.site.directives, *(self.limits.options if self.limits else ()))

    @property
    def runs_at_once(self) -> int | None:
        """Number of such runs that the queue accepts per user; None if no limit is known."""
        most = self.limits.max_submitted_jobs if self.limits else None
        return None if most is None else max(1, most // self.submitted_jobs)

    @property
    def submitted_jobs(self) -> int:
        """Number of the run's jobs in the queue at a time."""
        return submitted_jobs(self.cluster, self.jobs)

    @property
    def variables(self) -> dict[str, Variable]:
        """The site's variables by the names that the script exports."""
        return script.export_variables(self.site, self.user)

    @property
    def rank_words(self) -> str:
        """Words before a rank's Python: variables to unset and set, and the rank wrapper."""
        words = []
        if self.user.image is not None:  # the image inherits the host's variables
            sides = self.site.environment.items()
            words += [f"-u {name}" for name, variable in sides if variable.side == "host"]
            words = ["env", *words] if words else []
        if own := self.site.rank_environment:
            sets = [
                f"{name}={script.quote_word(variable.value)}" for name, variable in own.items()
            ]
            words += ["bash", "-c", shlex.quote(f'export {" ".join(sets)}; exec "$@"'), "rank"]
        return "".join(f"{word} " for word in (*words, *self.site.rank_wrapper))

    @property
    def own_python(self) -> str:
        """Command of Python in the node's copy of the environment or of the image."""
        if self.user.image is None:
            return '"$node/venv/bin/python"'
        return self.python.replace(self.user.image, '"$node/image"')

    @property
    def task_python(self) -> str:
        """Command of Python in a task. With a container file, tasks start in the image."""
        return "python" if self.container_text else self.python

    @property
    def in_container(self) -> str:
        """The launcher's option for the image, with a trailing space; empty without a file."""
        return f"{container.IN_CONTAINER} " if self.container_text else ""

    @property
    def ranks_python(self) -> str:
        shared = self.cluster.imports == "shared"
        python = self.task_python if shared else f"{ON_NODE} {self.own_python}"
        return f"{self.rank_words}{python}"

    @property
    def preflight_python(self) -> str:
        """Command of Python for preflight. It also runs on a node whose copy failed.

        It then imports from the shared environment and reports the failure.
        """
        if self.cluster.imports == "shared":
            return self.task_python
        python = "python" if self.user.image is None else self.own_python
        return f'{ON_NODE} PYTHONPATH="$node/code:$PYTHONPATH" {python}'

    @property
    def walltime(self) -> str:
        return script.format_walltime(self.walltime_seconds)

    def check_complete(self) -> None:
        """Raise if a value is missing: no scheduler accepts a script with angle brackets."""
        for error in self.missing:
            raise error


def _needed_hours(plan: Plan | None) -> float | None:
    """Return the plan's upper bound of the hours of the whole run."""
    if plan is None or plan.cost_estimate is None:
        return None
    return plan.cost_estimate.days * 24 * (1 + plan.error_fraction)


def job_settings(
    recipe: Recipe, user: User, *, repository: Path, run: Path, node: str | None = None
) -> JobSettings:
    """Compute the settings of a job for ``recipe`` in ``run``; ``node`` is its name in a tree.

    Raises:
        RecipeError: the cluster has no scheduler or site, no queue accepts the nodes or hours,
            a path needs quotes in a script, or the container file cannot be used.
    """
    cluster, site = recipe.cluster, script.site_of(recipe)
    container.check_container(cluster, site, user)
    plan = None if isinstance(cluster.hardware, str) else plan_recipe(recipe)
    hours = _needed_hours(plan)
    nodes = cluster.nodes + cluster.spare_nodes
    whole = with_nodes(cluster, nodes)
    slot = script.choose_queue(whole, wanted=user.queue, needed_hours=hours)
    walltime = round(slot.hours * script.HOUR)
    lead = _lead_seconds(cluster, site, plan, walltime)
    jobs, needed, notes = _chain(whole, slot.queue, hours, walltime - lead, len(recipe.phases))
    account = f"{user.account or '<account>'}{site.account_suffix}"
    local = None
    if not isinstance(recipe.checkpoint.local, str):
        local = script.check_plain(recipe.checkpoint.local.folder, "checkpoint.local.folder")
    venv, python = script.python_of(site, user, repository)
    # If a node hangs, the gathering process finishes before the launcher is ended.
    rules, spare = cluster.preflight, script.MINUTE
    preflight = None if isinstance(rules, str) else ceil(rules.longest_seconds) + spare
    # The script counts the nodes when it runs: a job may exclude or lose nodes.
    scheduler, count = scheduler_for(cluster), f"$(wc -l < $run/{HOSTS})"
    return JobSettings(
        name=script.job_name(recipe, node),
        recipe=recipe,
        cluster=cluster,
        site=site,
        user=user,
        plan=plan,
        nodes=nodes,
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
        node_folder=script.check_plain(site.node_folder, "cluster.site.node_folder"),
        local_folder=local,
        caches=cache_variables(cluster.device),
        allocator=allocator_settings(cluster.device),
        repository=script.check_plain(str(repository), "repository"),
        run=script.output_folder(run, "run", cluster.scheduler),
        container_text=container.container_text(site, user, str(repository)),
        container_path=container.container_path(run / "jobs"),
        on_each=tuple(scheduler.on_each(Path("$run", HOSTS), count, site.launch)),
        missing=tuple(script.missing_of(recipe, user, slot.name)),
        notes=(*notes, *_cores_note(cluster, site)),
    )


def _cores_note(cluster: Cluster, site: Site) -> tuple[str, ...]:
    """Return a note that Slurm gives each rank one core, if nothing requests more."""
    words = (*site.directives, *site.launch)
    more = any(word.startswith(("--cpus-per-", "--exclusive")) for word in words)
    has_cores = cluster.scheduler != "slurm" or site.binding.cores_per_rank or more
    return () if has_cores else (_CORES_UNSET,)


def render_job_script(settings: JobSettings) -> str:
    """Return the job script, with a trailing newline."""
    return script.fill_template(f"{settings.cluster.scheduler}.sh.j2", settings)


def run_folder(recipe: Recipe, user: User, named: Path | None, repository: Path) -> Path:
    """Return the absolute run folder: ``named``, or a folder below the user's runs."""
    runs = Path(user.runs or repository / "runs")
    folder = (named or runs / f"{recipe.name}-{recipe.scale.name}").absolute()
    if len(bytes(folder)) > 4095 or any(len(part.encode()) > 255 for part in folder.parts):
        raise RecipeError("run", f"{str(folder)[:60]}...: too long", "use a shorter path")
    return folder


def _lead_seconds(cluster: Cluster, site: Site, plan: Plan | None, walltime: int) -> int:
    """Return the site's time for saving plus one step: a run stops only after its step."""
    step = 0.0
    if plan is not None and plan.time is not None:
        step = plan.time.total_seconds * (1 + plan.error_fraction)
    lead = site.spare_seconds + ceil(step / script.MINUTE) * script.MINUTE
    if lead >= walltime:
        longer = "remove cluster.smoke" if cluster.smoke else "increase cluster.hours"
        raise RecipeError(
            "cluster.hours",
            f"{walltime:,} seconds, but one step and checkpoint can take {lead:,} seconds",
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
    """Return the number of jobs in the chain, the number the whole run needs, and notes.

    A job may end early at each of the ``borders`` of the run's phases. Jobs that are left when
    the run has finished end at once.
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
        remedy = f"set cluster.jobs={most}; {remark.remedy}"
        raise RecipeError("cluster.jobs", f"{named:,}, but {remark.problem}", remedy)
    notes = () if remark is None else (f"{remark.path}: {remark.problem}; {remark.remedy}",)
    if needed is None:
        return 1 + borders, None, (*notes, _UNPLANNED)
    if most is not None and needed > most:
        return most, needed, notes
    if needed > MOST_JOBS and isinstance(named, str):
        return MOST_JOBS, needed, (*notes, _LONG.format(needed=needed, most=MOST_JOBS))
    return needed, needed, notes


_CORES_UNSET = (
    "cluster.site.binding.cores_per_rank: not set, so Slurm gives each rank one core; set it, "
    "or add --exclusive to cluster.site.directives"
)
_UNPLANNED = (
    "cluster.jobs: the plan lacks measurements of this cluster, so the number of jobs is "
    "unknown; the script has one job; set cluster.jobs=... for a chain"
)
_LONG = (
    "cluster.jobs: the run needs {needed:,} such jobs, but an array has at most {most:,}; "
    "set cluster.hours=... or use more nodes"
)
