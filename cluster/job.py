"""Everything that a job script may print, computed before a template sees it."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

from cluster.queues import choose_slot
from cluster.schedulers import scheduler_of
from cluster.user import PLAIN, User, unsaid
from components.config.schema.cluster import Binding, Preflights, SetupStep, Site, Variable
from components.config.schema.recipe import Recipe
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.plan import Plan, plan_recipe
from components.preflight.verdict import HOSTS
from components.train.ranks import cache_variables

HOUR, MINUTE = 3_600, 60
ON_NODE = '"${on_node[@]}"'  # what a script sets for who imports from the node's copies
MOST_JOBS = 1_000  # of one array, by SLURM's default MaxArraySize


def clock(seconds: int) -> str:
    """Write hours, minutes and seconds as both schedulers read them."""
    minutes, seconds = divmod(seconds, MINUTE)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One job of a run; texts in angle brackets stand for what the user has not said.

    ``lead_seconds`` before the wall the run is told to stop: a step and a checkpoint fit in.
    ``nodes`` counts the ``spare_nodes`` too; with ``agents`` the launcher starts one task a
    node, which starts its ranks. One task a node is started by the words ``on_each``. What
    looks at the nodes before is ended after ``preflight_seconds``; where these are None nothing
    does. What a job keeps on its nodes is below ``node_folder``; ``caches`` are variables that
    name folders there. ``jobs`` is how many such jobs the run needs at most, by the plan;
    ``missing`` names what the user has to say, with the file and the line to write; ``notes``
    are worth knowing.
    """

    name: str
    cluster: str
    scheduler: str
    nodes: int
    spare_nodes: int
    ranks_per_node: int
    agents: bool
    preflight_seconds: int | None
    queue_option: str
    queue: str
    account: str | None
    mail: str | None
    reservation: str | None
    node_resources: str | None
    directives: tuple[str, ...]
    walltime_seconds: int
    lead_seconds: int
    jobs: int
    modules: tuple[str, ...]
    setup: tuple[SetupStep, ...]
    environment: tuple[tuple[str, Variable], ...]
    proxy: str | None
    venv: str | None
    image: str | None
    python: str
    imports: str
    node_folder: str
    caches: tuple[str, ...]
    repository: str
    run: str
    host_suffix: str
    binding: Binding
    launch: tuple[str, ...]
    on_each: tuple[str, ...]
    missing: tuple[RecipeError, ...]
    notes: tuple[str, ...]

    @property
    def tasks_per_node(self) -> int:
        """Count what the launcher starts on a node: its ranks, or an agent that does."""
        return 1 if self.agents else self.ranks_per_node

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def cores_per_task(self) -> int | None:
        cores = self.binding.cores_per_rank
        return cores if cores is None or not self.agents else cores * self.ranks_per_node

    @property
    def program(self) -> str:
        return "components.train.node" if self.agents else "components.train"

    @property
    def own_python(self) -> str:
        """Start Python from the node's copy of the environment, or in its copy of the image."""
        if self.image is None:
            return '"$node/venv/bin/python"'
        return self.python.replace(self.image, '"$node/image"')

    @property
    def ranks_python(self) -> str:
        return self.python if self.imports == "shared" else f"{ON_NODE} {self.own_python}"

    @property
    def preflight_python(self) -> str:
        """Start it on a node without a copy too, from the shared one, to say what is wrong."""
        if self.imports == "shared":
            return self.python
        found = "python" if self.image is None else self.own_python
        path = "$node/code:$PWD${PYTHONPATH:+:$PYTHONPATH}"
        return f'{ON_NODE} PYTHONPATH="{path}" {found}'

    @property
    def walltime(self) -> str:
        return clock(self.walltime_seconds)

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
    cluster, site = recipe.cluster, site_of(recipe)
    plan = _plan(recipe)
    nodes = cluster.nodes + cluster.spare_nodes
    asked = cluster.model_copy(update={"nodes": nodes})
    slot = choose_slot(asked, wanted=user.queue, needed_hours=_hours(plan))
    walltime = round(slot.hours * HOUR)
    lead = _lead_seconds(cluster, site, plan, walltime)
    needed = _jobs(_hours(plan), walltime - lead)
    account = f"{user.account or '<account>'}{site.account_suffix}"
    return JobSettings(
        name=recipe.name,
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        nodes=nodes,
        spare_nodes=cluster.spare_nodes,
        ranks_per_node=cluster.devices_per_node,
        agents=recipe.watchdog.restarts > 0,
        preflight_seconds=_preflight_seconds(cluster.preflight),
        queue_option=site.queue_option,
        queue=slot.queue or "<queue>",
        account=account if user.account or site.account == "required" else None,
        mail=user.mail,
        reservation=user.reservation,
        node_resources=site.node_resources,
        directives=site.directives,
        walltime_seconds=walltime,
        lead_seconds=lead,
        jobs=1 if cluster.smoke else _chain(cluster.jobs, needed),
        modules=site.modules,
        setup=site.setup,
        environment=tuple(site.environment.items()),
        proxy=site.proxy,
        venv=None if user.image else plain(user.venv or str(repository / ".venv"), "site.venv"),
        image=user.image,
        python=python_of(site, user),
        imports=cluster.imports,
        node_folder=plain(site.node_folder, "cluster.site.node_folder"),
        caches=cache_variables(cluster.device),
        repository=plain(str(repository), "repository"),
        run=plain(str(run), "run"),
        host_suffix=site.host_suffix,
        binding=site.binding,
        launch=site.launch,
        on_each=tuple(scheduler_of(cluster).on_each(Path("$run", HOSTS), nodes, site.launch)),
        missing=tuple(missing_of(recipe, user, slot.queue)),
        notes=() if cluster.smoke or cluster.jobs != "auto" else tuple(_notes(needed)),
    )


def site_of(recipe: Recipe) -> Site:
    """Return the site of the recipe's cluster.

    Raises:
        RecipeError: there is no scheduler, or nobody has described the site.
    """
    cluster = recipe.cluster
    if cluster.scheduler == "none":
        raise RecipeError(
            "cluster",
            f"{cluster.name} has no scheduler, so there is no job script",
            f"cluster={recipe.home} is this recipe's home; action=train trains here",
        )
    if isinstance(cluster.site, str):
        raise RecipeError(
            "cluster.site",
            f"the profile of {cluster.name} does not describe its site",
            "add the key site to it: docs/clusters.md lists what belongs there",
        )
    return cluster.site


def run_folder(recipe: Recipe, user: User, named: Path | None, repository: Path) -> Path:
    """Return the absolute folder of the run: the one named, else one below the user's runs."""
    folder = (
        named or Path(user.runs or repository / "runs") / f"{recipe.name}-{recipe.scale.name}"
    )
    return folder.absolute()


def _plan(recipe: Recipe) -> Plan | None:
    """Plan where the profile has figures; a job can be written without."""
    return None if isinstance(recipe.cluster.hardware, str) else plan_recipe(recipe)


def _hours(plan: Plan | None) -> float | None:
    """The whole run's hours by the plan's upper bound."""
    if plan is None or plan.bill is None:
        return None
    return plan.bill.days * 24 * (1 + plan.error_fraction)


def _lead_seconds(cluster: Cluster, site: Site, plan: Plan | None, walltime: int) -> int:
    """Add a step to the site's time for saving: a run stops only after the step it is in.

    Raises:
        RecipeError: no time to train is left.
    """
    step = 0.0 if plan is None or plan.time is None else plan.time.total
    step *= 1 if plan is None else 1 + plan.error_fraction
    lead = site.spare_seconds + ceil(step / MINUTE) * MINUTE
    if lead >= walltime:
        longer = "leave cluster.smoke out" if cluster.smoke else "ask for more hours"
        raise RecipeError(
            "cluster.hours",
            f"{walltime:,} seconds, but a step and a checkpoint may take {lead:,} of them",
            f"{longer}, or set cluster.site.spare_seconds=...",
        )
    return lead


def _preflight_seconds(preflight: Preflights) -> int | None:
    """Let who gathers be ready before the launcher is ended, if a node hangs."""
    return None if isinstance(preflight, str) else ceil(preflight.longest_seconds) + MINUTE


def _jobs(needed_hours: float | None, useful_seconds: int) -> int | None:
    """Count the jobs of the whole run; what is left of a chain at its end ends at once."""
    if needed_hours is None:
        return None
    return max(1, ceil(needed_hours * HOUR / useful_seconds))


def _chain(wanted: int | Literal["auto"], needed: int | None) -> int:
    return min(MOST_JOBS, needed or 1) if isinstance(wanted, str) else wanted


def _notes(needed: int | None) -> list[str]:
    if needed is None:
        return [
            "cluster.jobs: the plan lacks figures of this cluster, so nobody knows how many "
            "jobs the run needs; one is written, set cluster.jobs=... for a chain"
        ]
    if needed > MOST_JOBS:
        return [
            f"cluster.jobs: the run needs {needed:,} such jobs, an array has {MOST_JOBS:,} at "
            "most; set cluster.hours=... or take more nodes"
        ]
    return []


def python_of(site: Site, user: User) -> str:
    """Return how Python is started: inside the user's image if there is one.

    Raises:
        RecipeError: the profile does not say how.
    """
    if user.image is None:
        return "python"
    if site.container is None:
        raise RecipeError(
            "site.image",
            f"{user.image}, but the profile does not say how this site starts a container",
            "set site.venv=..., or cluster.site.container='apptainer exec ...'",
        )
    return f"{site.container} {user.image} python"


def plain(text: str, path: str) -> str:
    """Return a text that may stand in a script without quotes.

    Raises:
        RecipeError: it may not.
    """
    if not PLAIN.fullmatch(text):
        remedy = "choose a path of letters, digits and _ . / @ % + = : , -"
        raise RecipeError(path, f"{text!r} cannot stand in a job script", remedy)
    return text


def missing_of(recipe: Recipe, user: User, queue: str | None) -> list[RecipeError]:
    """List what the user has to say before a scheduler takes the script."""
    name, site = recipe.cluster.name, site_of(recipe)
    found = []
    if user.account is None and site.account == "required":
        found.append(unsaid("account", name, f"{name} bills every job to an account"))
    if queue is None:
        found.append(unsaid("queue", name, f"the profile of {name} names no queue"))
    return found
