"""What all scripts for a scheduler share: templates, the queue and hours, checked texts."""

import re
import shlex
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.user import PLAIN, User, unsaid
from components.config.schema.cluster import QueueSection, Site
from components.config.schema.recipe import Recipe
from components.config.schema.sections import Cluster
from components.errors import RecipeError

_NEEDS_QUOTES = re.compile(r"[\s;&|<>()*?\[\]{}!#'\"\\`]")
HOUR, MINUTE, SMOKE_HOURS = 3_600, 60, 0.5
Slot = tuple[str | None, float]  # a queue, and for how many hours


def fill(name: str, settings: object) -> str:
    """Return the template ``name``, filled; its one variable is ``job``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # a shell script, no page; what comes from users is checked before
    )
    environment.filters["word"] = word
    return environment.get_template(name).render(job=settings)


def word(text: str) -> str:
    """Quote ``text`` as one word of shell in which variables are still filled in."""
    if "$" in text:
        return f'"{text}"'
    return shlex.quote(text) if _NEEDS_QUOTES.search(text) or not text else text


def clock(seconds: int) -> str:
    """Write hours, minutes and seconds as both schedulers read them."""
    minutes, seconds = divmod(seconds, MINUTE)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def plain(text: str, path: str) -> str:
    """Return a text that may stand in a script without quotes.

    Raises:
        RecipeError: it may not.
    """
    if not PLAIN.fullmatch(text):
        remedy = "choose a path of letters, digits and _ . / @ % + = : , -"
        raise RecipeError(path, f"{text!r} cannot stand in a job script", remedy)
    return text


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


def python_of(site: Site, user: User, repository: Path) -> tuple[str | None, str]:
    """Return the environment to activate, the user's or the repository's, and Python's words.

    In the user's image, if there is one, Python is started without an environment.

    Raises:
        RecipeError: the profile does not say how an image starts, or a path is not plain.
    """
    if user.image is None:
        return plain(user.venv or str(repository / ".venv"), "site.venv"), "python"
    if site.container is None:
        raise RecipeError(
            "site.image",
            f"{user.image}, but the profile does not say how this site starts a container",
            "set site.venv=..., or cluster.site.container='apptainer exec ...'",
        )
    return None, f"{site.container} {user.image} python"


def host_python_of(user: User, repository: Path) -> str:
    """Return the words of the Python that runs on the host itself.

    With an image it is the repository's environment, or whatever the user names: Python 3.11 or
    newer with the packages of requirements/host.in.
    """
    if user.image is None:
        return "python"
    return plain(user.host_python or f"{repository}/.venv/bin/python", "site.host_python")


def missing_of(recipe: Recipe, user: User, queue: str | None) -> list[RecipeError]:
    """List what the user has to say before a scheduler takes the script."""
    name = recipe.cluster.name
    found = []
    if user.account is None and site_of(recipe).account == "required":
        found.append(unsaid("account", name, f"{name} bills every job to an account"))
    if queue is None:
        found.append(unsaid("queue", name, f"the profile of {name} names no queue"))
    return found


def choose_queue(cluster: Cluster, *, wanted: str | None, needed_hours: float | None) -> Slot:
    """Take the user's queue, else the fitting one with the tightest limit, and a job's hours.

    The queue is None where nobody has named one. ``needed_hours`` are the whole run's, if they
    are known: a job asks for no more than these, rounded up, and an hour to start. Queues for
    debugging are taken where no other fits.

    Raises:
        RecipeError: no queue takes so many nodes, or none for so long.
    """
    hours = None if isinstance(cluster.hours, str) else cluster.hours
    if cluster.smoke:
        hours = min(hours or SMOKE_HOURS, SMOKE_HOURS)
    listed = [queue for queue in cluster.queues if wanted in {None, queue.name, queue.route}]
    if not listed:
        if hours is None:
            raise RecipeError(
                "cluster.hours",
                f"the profile of {cluster.name} knows no limit of this queue",
                "set cluster.hours=...: how long one job may run",
            )
        unlisted = None if isinstance(cluster.site, str) else cluster.site.queue
        return wanted or unlisted, hours
    fitting = _of_size(cluster, listed)
    if cluster.smoke:
        queue = min(fitting, key=lambda queue: (not queue.debug, queue.longest_hours))
        return queue.route or queue.name, min(SMOKE_HOURS, queue.longest_hours)
    fitting = [queue for queue in fitting if not queue.debug] or fitting
    longest = max(queue.longest_hours for queue in fitting)
    if hours is None:
        hours = longest if needed_hours is None else min(longest, int(needed_hours) + 2)
    if hours > longest:
        names = ", ".join(queue.name for queue in fitting)
        raise RecipeError(
            "cluster.hours",
            f"{hours:g}, but for {cluster.nodes:,} nodes {names} allow at most {longest:g}",
            f"set cluster.hours={longest:g}: the run goes on in the next job",
        )
    long_enough = [queue for queue in fitting if queue.longest_hours >= hours]
    queue = min(long_enough, key=lambda queue: queue.longest_hours)
    return queue.route or queue.name, hours


def _of_size(cluster: Cluster, queues: list[QueueSection]) -> list[QueueSection]:
    """Keep the queues that take so many nodes."""
    nodes = cluster.nodes
    fitting = [queue for queue in queues if queue.fewest_nodes <= nodes <= queue.most_nodes]
    if not fitting:
        sizes = [f"{one.name} {one.fewest_nodes:,} to {one.most_nodes:,}" for one in queues]
        raise RecipeError(
            "cluster.nodes",
            f"no queue of {cluster.name} takes {nodes:,} nodes: {', '.join(sizes)}",
            "choose other degrees, parallelism.data=... first; or name another site.queue=...",
        )
    return fitting
