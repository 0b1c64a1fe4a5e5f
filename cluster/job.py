"""Settings of a job script, computed before its template sees them."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cluster import script
from cluster.scheduler import scheduler_of
from cluster.user import User
from components.config.schema.cluster import Site
from components.config.schema.recipe import Recipe
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.plan import Plan, plan_recipe
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
    nodes: int  # with the spare ones
    agents: bool  # the launcher starts one task a node, which starts its ranks
    preflight_seconds: int | None  # what looks at the nodes is ended then; None: nothing does
    queue: str
    account: str | None
    walltime_seconds: int
    lead_seconds: int  # before the wall the run is told to stop: a step and a checkpoint fit in
    jobs: int  # how many such jobs the run needs at most, by the plan
    venv: str | None
    python: str
    host_python: str  # for what talks to the scheduler, which no image has
    node_folder: str  # below it is what a job keeps on its nodes
    caches: tuple[str, ...]  # variables that name folders there
    allocator: str | None  # settings of torch's, where nobody has any
    repository: str
    run: str
    on_each: tuple[str, ...]  # words that start one task a node
    missing: tuple[RecipeError, ...]  # what the user has to say, the file and the line to write
    notes: tuple[str, ...]

    @property
    def tasks_per_node(self) -> int:
        """Count what the launcher starts on a node: its ranks, or an agent that does."""
        return 1 if self.agents else self.cluster.devices_per_node

    @property
    def own_python(self) -> str:
        """Start Python from the node's copy of the environment, or in its copy of the image."""
        if self.user.image is None:
            return '"$node/venv/bin/python"'
        return self.python.replace(self.user.image, '"$node/image"')

    @property
    def ranks_python(self) -> str:
        shared = self.cluster.imports == "shared"
        return self.python if shared else f"{ON_NODE} {self.own_python}"

    @property
    def preflight_python(self) -> str:
        """Start it on a node without a copy too, from the shared one, to say what is wrong."""
        if self.cluster.imports == "shared":
            return self.python
        found = "python" if self.user.image is None else self.own_python
        return f'{ON_NODE} PYTHONPATH="$node/code:$PWD${{PYTHONPATH:+:$PYTHONPATH}}" {found}'

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


def job_settings(recipe: Recipe, user: User, *, repository: Path, run: Path) -> JobSettings:
    """Compute the job of ``recipe`` that works in the folder ``run``.

    Raises:
        RecipeError: the cluster has no scheduler or its profile no site, no queue takes the
            nodes or the hours, or a path cannot stand in a script.
    """
    cluster, site = recipe.cluster, script.site_of(recipe)
    plan = None if isinstance(cluster.hardware, str) else plan_recipe(recipe)
    needed_hours = None  # of the whole run, by the plan's upper bound
    if plan is not None and plan.bill is not None:
        needed_hours = plan.bill.days * 24 * (1 + plan.error_fraction)
    nodes = cluster.nodes + cluster.spare_nodes
    asked = cluster.model_copy(update={"nodes": nodes})
    queue, hours = script.choose_queue(asked, wanted=user.queue, needed_hours=needed_hours)
    walltime = round(hours * script.HOUR)
    lead = _lead_seconds(cluster, site, plan, walltime)
    jobs, note = _chain(cluster, needed_hours, walltime - lead)
    account = f"{user.account or '<account>'}{site.account_suffix}"
    venv, python = script.python_of(site, user, repository)
    # Who gathers is ready before the launcher is ended, if a node hangs.
    rules, spare = cluster.preflight, script.MINUTE
    preflight = None if isinstance(rules, str) else ceil(rules.longest_seconds) + spare
    # A job that is to leave nodes out has more of them than this script knows.
    scheduler = scheduler_of(cluster)
    each = nodes if scheduler.excludes else f"$(wc -l < $run/{HOSTS})"
    return JobSettings(
        name=recipe.name,
        cluster=cluster,
        site=site,
        user=user,
        nodes=nodes,
        agents=recipe.watchdog.restarts > 0,
        preflight_seconds=preflight,
        queue=queue or "<queue>",
        account=account if user.account or site.account == "required" else None,
        walltime_seconds=walltime,
        lead_seconds=lead,
        jobs=jobs,
        venv=venv,
        python=python,
        host_python=script.host_python_of(user, repository),
        node_folder=script.plain(site.node_folder, "cluster.site.node_folder"),
        caches=cache_variables(cluster.device),
        allocator=allocator_settings(cluster.device),
        repository=script.plain(str(repository), "repository"),
        run=script.plain(str(run), "run"),
        on_each=tuple(scheduler.on_each(Path("$run", HOSTS), each, site.launch)),
        missing=tuple(script.missing_of(recipe, user, queue)),
        notes=(note,) if note else (),
    )


def render(settings: JobSettings) -> str:
    """Return the job script, with its last newline."""
    return script.fill(f"{settings.cluster.scheduler}.sh.j2", settings)


def run_folder(recipe: Recipe, user: User, named: Path | None, repository: Path) -> Path:
    """Return the absolute folder of the run: the one named, else one below the user's runs."""
    runs = Path(user.runs or repository / "runs")
    return (named or runs / f"{recipe.name}-{recipe.scale.name}").absolute()


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


def _chain(cluster: Cluster, needed_hours: float | None, job_seconds: int) -> tuple[int, str]:
    """Count the jobs of the whole run, with a note; what is left of a chain ends at once."""
    if cluster.smoke:
        return 1, ""
    if not isinstance(cluster.jobs, str):
        return cluster.jobs, ""
    if needed_hours is None:
        return 1, (
            "cluster.jobs: the plan lacks figures of this cluster, so nobody knows how many "
            "jobs the run needs; one is written, set cluster.jobs=... for a chain"
        )
    needed = max(1, ceil(needed_hours * script.HOUR / job_seconds))
    if needed > MOST_JOBS:
        return MOST_JOBS, (
            f"cluster.jobs: the run needs {needed:,} such jobs, an array has {MOST_JOBS:,} at "
            "most; set cluster.hours=... or take more nodes"
        )
    return needed, ""
