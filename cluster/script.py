"""Common parts of all job scripts: templates, choice of queue and hours, checked strings."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.container import HERE, file_of
from cluster.user import PLAIN, User, missing_setting_error
from components.config.recipe import Recipe
from components.config.schema.cluster import QueueSection, Site, Variable
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.queues import can_accept_job, no_queue, queues_on

_NEEDS_QUOTES = re.compile(r"[\s;&|<>()*?\[\]{}!#'\"\\`]")
HOUR, MINUTE, SMOKE_HOURS = 3_600, 60, 0.5
MOST_NAME = 230


@dataclass(frozen=True)
class Slot:
    """A queue's name (None: not set), hours of a job, and the profile's queue, if any."""

    name: str | None
    hours: float
    queue: QueueSection | None = None


def fill_template(name: str, settings: object) -> str:
    """Render the template ``name``. Its only variable is ``job``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # a shell script, not HTML; user input is checked earlier
    )
    environment.filters["word"] = quote_word
    return environment.get_template(name).render(job=settings)


def quote_word(text: str) -> str:
    """Quote ``text`` as one shell word. Shell variables in it are still expanded."""
    if "$" in text:
        return f'"{text}"'
    return shlex.quote(text) if _NEEDS_QUOTES.search(text) or not text else text


def format_walltime(seconds: int) -> str:
    """Return ``HH:MM:SS``, the format of both schedulers."""
    minutes, seconds = divmod(seconds, MINUTE)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"


def check_plain(text: str, path: str) -> str:
    """Return ``text``; RecipeError if it needs quotes in a script."""
    if not PLAIN.fullmatch(text):
        remedy = "use a path of letters, digits and _ . / @ % + = : , -"
        raise RecipeError(path, f"{text!r} is not allowed in a job script", remedy)
    return text


def output_folder(folder: Path, path: str, scheduler: str) -> str:
    """Return a job's output folder if a script can contain it: PBS reads ``HOST:FOLDER``."""
    if scheduler == "pbs" and ":" in str(folder):
        problem = f"{str(folder)!r}: PBS reads the text before a colon as a host"
        raise RecipeError(path, problem, "use a path without colons")
    return check_plain(str(folder), path)


def job_name(recipe: Recipe, part: str | None) -> str:
    """Return the job name: the recipe's name, cut if too long, and ``part`` of its work.

    PBS accepts 230 characters (PBS_MAXJOBNAME of OpenPBS's pbs_ifl.h), Slurm more.
    """
    if part is None:
        return recipe.name
    return f"{recipe.name[: MOST_NAME - 1 - len(part)]}-{part}"


def site_of(recipe: Recipe) -> Site:
    """Return the site of the recipe's cluster; RecipeError without a scheduler or a site."""
    cluster = recipe.cluster
    if cluster.scheduler == "none":
        raise RecipeError(
            "cluster",
            f"{cluster.name} has no scheduler, so it cannot run a job script",
            f"set cluster={recipe.reference_cluster}, or train here with action=train",
        )
    if isinstance(cluster.site, str):
        raise RecipeError(
            "cluster.site",
            f"the profile of {cluster.name} does not describe its site",
            "add the key site to the profile; docs/cluster_profiles.md lists its keys",
        )
    return cluster.site


def python_of(site: Site, user: User, repository: Path) -> tuple[str | None, str]:
    """Return the virtual environment to activate, and the command of Python for one process.

    The environment is the user's or the repository's; it is None with an image.
    """
    if user.image is None:
        return check_plain(user.venv or str(repository / ".venv"), "site.venv"), "python"
    if site.container_file is not None:
        return None, f"{HERE} python"
    if site.container is None:
        raise RecipeError(
            "site.image",
            f"{user.image}, but the profile does not define how to start a container",
            "set site.venv=... or cluster.site.container='apptainer exec ...'",
        )
    return None, f"{site.container} {user.image} python"


def host_python_of(user: User, repository: Path) -> str:
    """Return the command of the Python that runs on the host.

    With an image it is the user's ``host_python`` or the repository's environment: Python 3.11
    or newer with the packages in requirements/host.in.
    """
    if user.image is None:
        return "python"
    return check_plain(user.host_python or f"{repository}/.venv/bin/python", "site.host_python")


def export_variables(site: Site, user: User) -> dict[str, Variable]:
    """Return the site's variables by the names that a script exports.

    Variables for the image get the prefix of the container program, such as ``APPTAINERENV_``,
    or are in the container file. Without an image, all names stay unchanged.
    """
    if file_of(site, user) is not None:
        return {
            name: variable
            for name, variable in site.environment.items()
            if variable.side == "host"
        }
    variables = {}
    for name, variable in site.environment.items():
        inside = variable.side == "image" and user.image is not None
        program = site.container.split()[0].upper() if inside and site.container else ""
        variables[f"{program}ENV_{name}" if program else name] = variable
    return variables


def missing_of(recipe: Recipe, user: User, queue: str | None) -> list[RecipeError]:
    """Return an error for each value that the user has to set before submission."""
    name = recipe.cluster.name
    errors = []
    if user.account is None and site_of(recipe).account == "required":
        errors.append(
            missing_setting_error("account", name, f"{name} requires an account for every job")
        )
    if queue is None:
        errors.append(
            missing_setting_error("queue", name, f"the profile of {name} sets no queue")
        )
    return errors


def choose_queue(cluster: Cluster, *, wanted: str | None, needed_hours: float | None) -> Slot:
    """Choose a queue and a job's hours; RecipeError if no queue accepts the nodes or hours.

    The queue is the user's, or the fitting queue with the shortest time limit. ``needed_hours``
    is the time of the whole run, if known: a job requests at most this time, rounded up, plus
    an hour to start. Debug queues and queues by request are the last choice; a smoke job
    prefers debug queues.
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
    """Return a slot in a queue that is not in the profile."""
    if hours is None:
        raise RecipeError(
            "cluster.hours",
            f"the profile of {cluster.name} has no limit for this queue",
            "set cluster.hours=... to the time limit of one job",
        )
    unlisted = None if isinstance(cluster.site, str) else cluster.site.queue
    return Slot(wanted or unlisted, hours)


def _too_long(
    cluster: Cluster, hours: float, fitting: list[QueueSection], longest: float
) -> RecipeError:
    names = ", ".join(queue.name for queue in fitting)
    problem = f"{hours:g}, but {names} allow at most {longest:g} for {cluster.nodes:,} nodes"
    remedy = f"set cluster.hours={longest:g}: the run continues in the next job"
    for queue in cluster.queues:
        if (
            queue.by_request
            and can_accept_job(cluster, queue)
            and queue.hours_on(cluster.nodes) >= hours
        ):
            remedy += f"; or, by request ({queue.by_request}), site.queue={queue.name}"
    return RecipeError("cluster.hours", problem, remedy)
