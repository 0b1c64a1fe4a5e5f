"""What all scripts for a scheduler share: templates, the queue and hours, checked texts."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.container import HERE, file_of
from cluster.user import PLAIN, User, unsaid
from components.config.recipe import Recipe
from components.config.schema.cluster import QueueSection, Site, Variable
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.queues import no_queue, queues_on, takes

_NEEDS_QUOTES = re.compile(r"[\s;&|<>()*?\[\]{}!#'\"\\`]")
HOUR, MINUTE, SMOKE_HOURS = 3_600, 60, 0.5
MOST_NAME = 230


@dataclass(frozen=True)
class Slot:
    """A queue by its name, None where nobody has named one, a job's hours, and its limits.

    ``queue`` is None where the profile knows nothing of it.
    """

    name: str | None
    hours: float
    queue: QueueSection | None = None


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


def output_folder(folder: Path, path: str, scheduler: str) -> str:
    """Return a folder for a job's output as a text that may stand in a script.

    Raises:
        RecipeError: it may not, or PBS would take a part of it for a host.
    """
    if scheduler == "pbs" and ":" in str(folder):
        problem = f"{str(folder)!r}: PBS takes what is before a colon for a host"
        raise RecipeError(path, problem, "choose a path without colons")
    return plain(str(folder), path)


def job_name(recipe: Recipe, part: str | None) -> str:
    """Name a job by its recipe and the ``part`` of the work that it does, whole or cut.

    PBS takes 230 characters (PBS_MAXJOBNAME of OpenPBS's pbs_ifl.h), Slurm more.
    """
    if part is None:
        return recipe.name
    return f"{recipe.name[: MOST_NAME - 1 - len(part)]}-{part}"


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

    In the user's image, if there is one, Python is started without an environment. The words
    are for one process on this node.

    Raises:
        RecipeError: the profile does not say how an image starts, or a path is not plain.
    """
    if user.image is None:
        return plain(user.venv or str(repository / ".venv"), "site.venv"), "python"
    if site.container_file is not None:
        return None, f"{HERE} python"
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


def exported(site: Site, user: User) -> dict[str, Variable]:
    """Give the site's variables by the names that a script exports.

    What is for the image alone gets there by the prefix of the program that starts it, as
    ``APPTAINERENV_``, or by its file; without an image there is one side.
    """
    if file_of(site, user) is not None:
        return {
            name: variable
            for name, variable in site.environment.items()
            if variable.side == "host"
        }
    found = {}
    for name, variable in site.environment.items():
        inside = variable.side == "image" and user.image is not None
        program = site.container.split()[0].upper() if inside and site.container else ""
        found[f"{program}ENV_{name}" if program else name] = variable
    return found


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

    ``needed_hours`` are the whole run's, if they are known: a job asks for no more than these,
    rounded up, and an hour to start. Queues by request, and those for debugging, are taken
    where no other fits; a smoke job goes to one for debugging first.

    Raises:
        RecipeError: no queue takes so many nodes, or none for so long.
    """
    hours = None if isinstance(cluster.hours, str) else cluster.hours
    if cluster.smoke:
        hours = min(hours or SMOKE_HOURS, SMOKE_HOURS)
    listed = [queue for queue in cluster.queues if wanted in {None, queue.name, queue.route}]
    if not listed:
        return _unlisted(cluster, wanted, hours)
    debug = [queue for queue in listed if queue.debug] if cluster.smoke else []
    fitting = queues_on(cluster, debug) or queues_on(cluster, listed)
    if not fitting:
        raise no_queue(cluster, listed)
    longest = max(queue.longest_hours for queue in fitting)
    if cluster.smoke:
        queue = min(fitting, key=lambda queue: queue.longest_hours)
        return Slot(queue.route or queue.name, min(SMOKE_HOURS, queue.longest_hours), queue)
    if hours is None:
        hours = longest if needed_hours is None else min(longest, int(needed_hours) + 2)
    if hours > longest:
        raise _too_long(cluster, hours, fitting, longest)
    long_enough = [queue for queue in fitting if queue.longest_hours >= hours]
    queue = min(long_enough, key=lambda queue: queue.longest_hours)
    return Slot(queue.route or queue.name, hours, queue)


def _unlisted(cluster: Cluster, wanted: str | None, hours: float | None) -> Slot:
    """Take a queue of which the profile knows nothing."""
    if hours is None:
        raise RecipeError(
            "cluster.hours",
            f"the profile of {cluster.name} knows no limit of this queue",
            "set cluster.hours=...: how long one job may run",
        )
    unlisted = None if isinstance(cluster.site, str) else cluster.site.queue
    return Slot(wanted or unlisted, hours)


def _too_long(
    cluster: Cluster, hours: float, fitting: list[QueueSection], longest: float
) -> RecipeError:
    names = ", ".join(queue.name for queue in fitting)
    problem = f"{hours:g}, but for {cluster.nodes:,} nodes {names} allow at most {longest:g}"
    remedy = f"set cluster.hours={longest:g}: the run goes on in the next job"
    for queue in cluster.queues:
        if (
            queue.by_request
            and takes(cluster, queue)
            and queue.hours_on(cluster.nodes) >= hours
        ):
            remedy += f"; or, by request ({queue.by_request}), site.queue={queue.name}"
    return RecipeError("cluster.hours", problem, remedy)
