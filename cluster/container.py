"""Containers that Slurm starts itself: ``srun --environment=FILE``, and the file.

The file is an environment definition of CSCS' Container Engine, in TOML:
https://docs.cscs.ch/software/container-engine/edf. The script writes it on the host, for each
job its own, and tasks alone are started in the image.
"""

import json
from pathlib import Path

from cluster.user import User
from components.config.schema.cluster import ContainerFile, Site
from components.config.schema.sections import Cluster
from components.errors import RecipeError

IN_CONTAINER = '--environment="$container"'
# One process on the script's own node, beside other tasks, which may use all cores.
HERE = (
    "srun --overlap --cpu-bind=none --nodes=1 --ntasks=1 "
    f'--nodelist="$SLURMD_NODENAME" {IN_CONTAINER}'
)


def file_of(site: Site, user: User) -> ContainerFile | None:
    """Return what the profile says of the file, where this user has an image."""
    return None if user.image is None else site.container_file


def check_container(cluster: Cluster, site: Site, user: User) -> None:
    """Raise RecipeError where the file is no use: another scheduler, or copies of the image."""
    if file_of(site, user) is None:
        return
    if cluster.scheduler != "slurm":
        problem = f"tasks of {cluster.scheduler} are not started by a file, those of Slurm are"
        remedy = "set cluster.site.container='apptainer exec ...' and leave container_file out"
        raise RecipeError("cluster.site.container_file", problem, remedy)
    if cluster.imports == "node_local":
        problem = (
            "node_local, but the image is started by a file, and each node mounts it itself"
        )
        raise RecipeError("cluster.imports", problem, "set cluster.imports=shared")


def container_text(site: Site, user: User, repository: str) -> str | None:
    """Write the file, whose paths and variables are fixed; None where there is none.

    Of the variables that the image has, too, its own would win: ours are set here again.
    """
    found = file_of(site, user)
    if found is None:
        return None
    lines = [
        f"image = {_quoted(str(user.image))}",
        f"mounts = [{', '.join(_quoted(f'{path}:{path}') for path in found.mounts)}]",
        f"workdir = {_quoted(repository)}",
        "[annotations]",
        *(f"{name} = {_quoted(text)}" for name, text in found.annotations.items()),
        "[env]",
        # The image's own PYTHONPATH may win; the clone is the working folder there.
        'PYTHONSAFEPATH = ""',
        *(
            f"{name} = {_quoted(variable.value)}  # {variable.reason}"
            for name, variable in site.environment.items()
            if variable.side != "host"
        ),
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Write a basic string of TOML, which has JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)


def container_path(folder: Path | str) -> str:
    """Name the file of one job, which all its nodes see."""
    return f"{folder}/container-$SLURM_JOB_ID.toml"
