"""Environment variables of a rank: its number, torch's allocator, and kernel caches.

torch, Lightning and oneCCL read torchrun's variables; a cluster's launcher sets others.
"""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from components.errors import RecipeError

_ALL = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
# Intel's driver does not cache if the folder NEO_CACHE_DIR does not exist
# (github.com/intel/compute-runtime, default_cache_config.cpp).
# MIOpen, AMD's cuDNN, fails on shared file systems (docs.olcf.ornl.gov, PyTorch on Frontier).
_OF_DEVICE = {
    "cuda": ("CUDA_CACHE_PATH",),
    "rocm": ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR"),
    "xpu": ("NEO_CACHE_DIR", "SYCL_CACHE_DIR"),
}


def cache_variables(device: str) -> tuple[str, ...]:
    """Return the environment variables for the kernel caches of ``device``."""
    return (*_ALL, *_OF_DEVICE.get(device, ()))


# Torch reads these at the first allocation on a device. ALLOCATOR is the name since torch 2.9.
# If a user has set an older name, the allocator prefers the older one.
ALLOCATOR = "PYTORCH_ALLOC_CONF"
OLDER_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_GROWS = "expandable_segments:True"  # growing segments reduce fragmentation


def allocator_settings(device: str) -> str | None:
    """Return the default ``PYTORCH_ALLOC_CONF`` for a kind of device, or None.

    On AMD GPUs, torch has no expandable segments up to 2.10. With newer releases of 2026, the
    first copy hangs: https://github.com/pytorch/pytorch/issues/192259.
    """
    return _GROWS if device == "cuda" else None


def allocator_variables(device: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the allocator's variable, or nothing if the user's ``environment`` sets one."""
    settings = allocator_settings(device)
    if settings is None or any(name in environment for name in (ALLOCATOR, *OLDER_ALLOCATORS)):
        return {}
    return {ALLOCATOR: settings}


def make_cache_folders(environment: Mapping[str, str]) -> None:
    """Create the kernel cache folders; this user must own them, since processes run them."""
    every = (*_ALL, *chain.from_iterable(_OF_DEVICE.values()))
    for name in (name for name in every if name in environment):
        folder, fix = (
            Path(environment[name]),
            "set another folder, or cluster.site.node_folder",
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            owner = folder.stat().st_uid
        except OSError as error:
            raise RecipeError(name, f"cannot create {folder}: {error.strerror}", fix) from None
        if owner != os.getuid():
            raise RecipeError(name, f"{folder} belongs to another user", fix)


class Launcher(NamedTuple):
    """A launcher's variables for the rank, the local rank, and the number of ranks."""

    rank: str
    local_rank: str
    ranks: str | None


LAUNCHERS = (
    Launcher("PALS_RANKID", "PALS_LOCAL_RANKID", None),  # Cray's mpiexec
    Launcher("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),  # Hydra's mpiexec: MPICH, Intel MPI
    Launcher("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),  # srun
)


def rank_variables(
    environment: Mapping[str, str], *, ranks: int, per_node: int
) -> dict[str, str]:
    """Return torchrun's variables, or nothing if they are set or there is only one rank.

    ``ranks`` are the recipe's, which some launchers do not set. Raises RecipeError if no
    launcher sets the rank, or if it started a different number of ranks.
    """
    if "RANK" in environment or ranks == 1:
        return {}
    problem = f"not set, but the recipe has {ranks} ranks and no launcher sets the rank"
    launcher = _launcher(environment, problem, "start the ranks with srun, mpiexec or torchrun")
    started = int(environment.get(launcher.ranks or "", ranks))
    if started != ranks:
        raise RecipeError(
            str(launcher.ranks),
            f"{started} ranks were started, but the recipe has {ranks}",
            f"start {ranks} ranks, {per_node} per node",
        )
    rank = int(environment[launcher.rank])
    return {
        "RANK": str(rank),
        "LOCAL_RANK": environment[launcher.local_rank],
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(rank // per_node),
        # With this variable, Lightning uses torchrun's variables, not the scheduler's.
        "TORCHELASTIC_RUN_ID": environment.get("SLURM_JOB_ID")
        or environment.get("PBS_JOBID")
        or "job",
    }


def task_number(environment: Mapping[str, str]) -> int:
    """Return the number of this launcher task (one per node), else raise RecipeError."""
    problem = "no launcher sets the node's number in the job"
    return int(
        environment[
            _launcher(environment, problem, "start one task per node with srun or mpiexec").rank
        ]
    )


def _launcher(environment: Mapping[str, str], problem: str, remedy: str) -> Launcher:
    for launcher in LAUNCHERS:
        if launcher.rank in environment and launcher.local_rank in environment:
            return launcher
    raise RecipeError("RANK", problem, remedy)
