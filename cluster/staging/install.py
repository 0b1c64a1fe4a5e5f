"""The installer of a stage: a script for a machine that has Python, git and no network."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from cluster.render import fill
from cluster.staging.target import Target
from components.spec.recipe import Recipe
from components.spec.site import Site, Step

FILE = "install.sh"


@dataclass(frozen=True, kw_only=True)
class InstallSettings:
    """What the installer may print; ``words`` are those of the command that comes next."""

    name: str
    cluster: str
    where: str
    modules: tuple[str, ...]
    setup: tuple[Step, ...]
    python: str
    provided: tuple[str, ...]
    commit: str
    image: str | None
    words: str


def write_installer(
    folder: Path,
    recipe: Recipe,
    target: Target,
    *,
    commit: str,
    image: str | None,
    words: tuple[str, ...],
) -> None:
    """Write ``folder/install.sh``."""
    site = None if isinstance(recipe.cluster.site, str) else recipe.cluster.site
    settings = InstallSettings(
        name=recipe.name,
        cluster=recipe.cluster.name,
        where=" ".join(_where(site)),
        modules=site.modules if site else (),
        setup=site.setup if site else (),
        python=target.python,
        provided=target.provided,
        commit=commit,
        image=image,
        words=shlex.join(words),
    )
    script = folder / FILE
    script.write_text(fill("install.sh.j2", settings), "utf-8")
    script.chmod(0o755)


def _where(site: Site | None) -> list[str]:
    """Name the file system for code, and what its limits are."""
    for system in site.file_systems.values() if site else ():
        if "code" in system.purpose:
            limits = f" ({system.limits})" if system.limits else ""
            return [f"FOLDER is best below {system.path}{limits}"]
    return []
