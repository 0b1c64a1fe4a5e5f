"""Which rank a process is, whoever started it, its allocator, its folders for compiled kernels.

torch, Lightning and oneCCL read torchrun's variables. A cluster's launcher tells each process
the same under names of its own.
"""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from components.errors import RecipeError

_ALL = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
# Intel's driver has no cache at all where NEO_CACHE_DIR is missing
# (github.com/intel/compute-runtime, default_cache_config.cpp).
# MIOpen, AMD's cuDNN, fails on shared file systems (docs.olcf.ornl.gov, PyTorch on Frontier).
_OF_DEVICE = {
    "cuda": ("CUDA_CACHE_PATH",),
    "rocm": ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
    "xpu": ("NEO_CACHE_DIR", "SYCL_CACHE_DIR"),
}


def cache_variables(device: str) -> tuple[str, ...]:
    """Name the environment variables that say where kernels for ``device`` are kept."""
    return (*_ALL, *_OF_DEVICE.get(device, ()))


# What torch reads when a device first gives memory; the first is the name since 2.9, and of
# others that a user may have set the allocator takes its settings before.
ALLOCATOR = "PYTORCH_ALLOC_CONF"
OLDER_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GROWS = "expandable_segments:True"  # segments that grow: what is freed in between fits again


def allocator_settings(device: str) -> str | None:
    """Return what ``PYTORCH_ALLOC_CONF`` is for such devices where nobody has set it.

    On AMD's GPUs torch has no such segments up to 2.10, and with newer ones of 2026 the first
    copy hung: https://github.com/pytorch/pytorch/issues/192259.
    """
    return _GROWS if device == "cuda" else None


def allocator_variables(device: str, seen: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of torch's allocator; nothing where ``seen`` has the user's own."""
    settings = allocator_settings(device)
    if settings is None or any(name in seen for name in (ALLOCATOR, *OLDER_ALLOCATORS)):
        return {}
    return {ALLOCATOR: settings}


def make_cache_folders(seen: Mapping[str, str]) -> None:
    """Make the folders that ``seen`` names; whoever owns one has code in it run.

    Raises:
        RecipeError: one cannot be made, or belongs to somebody else.
    """
    every = (*_ALL, *chain.from_iterable(_OF_DEVICE.values()))
    for name in (name for name in every if name in seen):
        folder, way = Path(seen[name]), "name another folder, or cluster.site.node_folder"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            owner = folder.stat().st_uid
        except OSError as error:
            raise RecipeError(name, f"cannot make {folder}: {error.strerror}", way) from None
        if owner != os.getuid():
            raise RecipeError(name, f"{folder} belongs to another user", way)


class Launcher(NamedTuple):
    """Names under which a launcher tells rank, rank on the node, and how many there are."""

    rank: str
    local_rank: str
    ranks: str | None


LAUNCHERS = (
    Launcher("PALS_RANKID", "PALS_LOCAL_RANKID", None),  # Cray's mpiexec
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # Hydra's mpiexec: MPICH, Intel MPI
    Launcher("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),  # srun
)


def rank_variables(seen: Mapping[str, str], *, ranks: int, per_node: int) -> dict[str, str]:
    """Return what torchrun would set; nothing where it has, or where one rank needs none.

    Some launchers do not tell how many ranks there are: the recipe's ``ranks`` are meant then.

    Raises:
        RecipeError: no launcher says which rank this is, or it started another number of them.
    """
    if "RANK" in seen or ranks == 1:
        return {}
    problem = f"not set, but the recipe has {ranks} ranks, and no launcher says which this is"
    launcher = _launcher(seen, problem, "start the ranks by srun, by mpiexec or by torchrun")
    started = int(seen.get(launcher.ranks or "", ranks))
    if started != ranks:
        raise RecipeError(
            str(launcher.ranks),
            f"{started} ranks were started, but the recipe has {ranks}",
            f"start {ranks} of them, {per_node} a node",
        )
    rank = int(seen[launcher.rank])
    return {
        "RANK": str(rank),
        "LOCAL_RANK": seen[launcher.local_rank],
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
        # By this one Lightning takes the others, not the scheduler's, as torchrun's.
        "TORCHELASTIC_RUN_ID": seen.get("SLURM_JOB_ID") or seen.get("PBS_JOBID") or "job",
    }


def task_number(seen: Mapping[str, str]) -> int:
    """Return which of the launcher's tasks this is, where it starts one a node.

    Raises:
        RecipeError: no launcher says so.
    """
    problem = "no launcher says which node of the job this is"
    return int(
        seen[_launcher(seen, problem, "start one task a node by srun or by mpiexec").rank]
    )


def _launcher(seen: Mapping[str, str], problem: str, remedy: str) -> Launcher:
    for launcher in LAUNCHERS:
        if launcher.rank in seen and launcher.local_rank in seen:
            return launcher
    raise RecipeError("RANK", problem, remedy)
