"""Fill the scheduler's template with one job's settings."""

import re
import shlex
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.job import JobSettings

TEMPLATES = Path(__file__).parent / "templates"
NEEDS_QUOTES = re.compile(r"[\s;&|<>()*?\[\]{}!#'\"\\`]")


def render(settings: JobSettings) -> str:
    """Return the job script, with its last newline."""
    return fill(f"{settings.scheduler}.sh.j2", settings)


def fill(name: str, settings: object) -> str:
    """Fill the template ``name``, whose one variable is ``job``."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
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
    return shlex.quote(text) if NEEDS_QUOTES.search(text) or not text else text
