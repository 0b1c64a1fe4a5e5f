"""Containers started by Slurm with ``srun --environment=FILE``.

FILE is a TOML environment definition of the CSCS Container Engine:
https://docs.cscs.ch/software/container-engine/edf. The job script writes one file per job on
the host. Only tasks run in the image.
"""

import json
from pathlib import Path

from cluster.user import User
from components.config.schema.cluster import ContainerFile, Site
from components.config.schema.sections import Cluster
from components.errors import RecipeError

IN_CONTAINER = '--environment="$container"'
# One process on the script's own node. It may use all cores and share them with other tasks.
HERE = (
    "srun --overlap --cpu-bind=none --nodes=1 --ntasks=1 "
    f'--nodelist="$SLURMD_NODENAME" {IN_CONTAINER}'
)


def file_of(site: Site, user: User) -> ContainerFile | None:
    """Return the profile's container file settings; None if the user has no image."""
    return None if user.image is None else site.container_file


def check_container(cluster: Cluster, site: Site, user: User) -> None:
    """Raise RecipeError if the file cannot be used: not Slurm, or imports are node-local."""
    if file_of(site, user) is None:
        return
    if cluster.scheduler != "slurm":
        problem = f"{cluster.scheduler} cannot start tasks by a container file; only Slurm can"
        remedy = "set cluster.site.container='apptainer exec ...' and remove container_file"
        raise RecipeError("cluster.site.container_file", problem, remedy)
    if cluster.imports == "node_local":
        problem = "node_local, but with a container file each node mounts the image itself"
        raise RecipeError("cluster.imports", problem, "set cluster.imports=shared")


def container_text(site: Site, user: User, repository: str) -> str | None:
    """Return the text of the environment definition; None without a container file.

    Variables set in the image override inherited ones, so the site's variables are set here.
    """
    definition = file_of(site, user)
    if definition is None:
        return None
    lines = [
        f"image = {_quoted(str(user.image))}",
        f"mounts = [{', '.join(_quoted(f'{path}:{path}') for path in definition.mounts)}]",
        f"workdir = {_quoted(repository)}",
        "[annotations]",
        *(f"{name} = {_quoted(text)}" for name, text in definition.annotations.items()),
        "[env]",
        # The image's PYTHONPATH may win, so Python must import from the working folder.
        'PYTHONSAFEPATH = ""',
        *(
            f"{name} = {_quoted(variable.value)}  # {variable.reason}"
            for name, variable in site.environment.items()
            if variable.side != "host"
        ),
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a TOML basic string. Its escapes are the same as in JSON."""
    return json.dumps(text, ensure_ascii=False)


def container_path(folder: Path | str) -> str:
    """Return the path of one job's environment definition, visible to all its nodes."""
    return f"{folder}/container-$SLURM_JOB_ID.toml"
