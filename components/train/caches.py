"""Folders for compiled kernels, which not every library makes by itself.

Intel's driver has no cache at all where ``NEO_CACHE_DIR`` is missing
(github.com/intel/compute-runtime, default_cache_config.cpp).
"""

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from components.errors import RecipeError

_ALL = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR")
_OF_DEVICE = {"cuda": ("CUDA_CACHE_PATH",), "xpu": ("NEO_CACHE_DIR", "SYCL_CACHE_DIR")}


def cache_variables(device: str) -> tuple[str, ...]:
    """Name the environment variables that say where kernels for ``device`` are kept."""
    return (*_ALL, *_OF_DEVICE.get(device, ()))


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
