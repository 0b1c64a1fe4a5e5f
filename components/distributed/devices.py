"""The devices of this machine: their kind, how many there are, what joins ranks, their memory.

A rank has one device, that of its own number on the node, or where its site shows it no other
the first. Torch calls AMD's GPUs ``cuda``. On Intel's GPUs of two tiles a device is a tile:
https://www.intel.com/content/www/us/en/developer/articles/technical/flattening-gpu-tile-hierarchy.html
"""

import os
import resource
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.distributed as dist

from components.config.recipe import Recipe
from components.config.rules.engine import FLOAT8
from components.config.schema.cluster import DEVICE_MASKS
from components.config.schema.sections import Cluster, Precision
from components.errors import RecipeError

_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
_TILES_ARE_DEVICES = ("FLAT", "COMBINED")
_TELL = "tell the site if its other nodes have {}"
_FLOAT8_CAPABILITY = (8, 9)  # Ada; `torch._scaled_mm` refuses what is older
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def device_type(wanted: str) -> str:
    """Give torch's name of the device, and choose what ``auto`` stands for here."""
    if wanted != "auto":
        return "cuda" if wanted == "rocm" else wanted
    if torch.cuda.is_available():
        return "cuda"
    return "xpu" if torch.xpu.is_available() else "cpu"


def device_kind(wanted: str) -> str:
    """Give the name that a profile has for the device: this torch may be one for AMD's."""
    kind = device_type(wanted)
    return "rocm" if kind == "cuda" and torch.version.hip else kind


def compute_dtype(compute: str, device: torch.device) -> torch.dtype:
    """Choose the dtype that ``auto`` stands for on ``device``, or what is not in float8."""
    if compute == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if compute == FLOAT8:
        return torch.bfloat16
    return _dtype(compute)


class StateDtypes(NamedTuple):
    """Dtypes of the weights, of what the optimizer updates, and of two kinds of sums.

    ``accumulate`` adds up the gradients of microbatches, ``reduce`` those of ranks. The
    optimizer's moments have the dtype of ``master``.
    """

    weights: torch.dtype
    master: torch.dtype
    accumulate: torch.dtype
    reduce: torch.dtype

    @classmethod
    def of(cls, precision: Precision, device: torch.device) -> "StateDtypes":
        """Settle what ``auto`` stands for on ``device``."""
        computed = compute_dtype(precision.compute, device)
        # Torchao rounds each row by itself, from float32.
        computed = torch.float32 if precision.compute == FLOAT8 else computed
        weights = computed if precision.weights == "auto" else _dtype(precision.weights)
        finer = torch.promote_types(weights, torch.float32)
        master = finer if precision.master == "auto" else _dtype(precision.master)
        return cls(weights, master, _dtype(precision.accumulate), _dtype(precision.reduce))


def _dtype(name: str) -> torch.dtype:
    return cast("torch.dtype", getattr(torch, name))


def emulates_float8(kind: str) -> bool:
    """Whether such a device has no products in float8, but may emulate them."""
    return kind == "cpu"


def emulation_of(recipe: Recipe, kind: str) -> str | None:
    """Describe how the recipe's float8 is computed on such a device, where it is emulated."""
    if recipe.precision.compute != FLOAT8 or not emulates_float8(kind):
        return None
    return f"emulated: a {kind} rounds the numbers and multiplies them in float32, slower"


def check_float8_device(device: torch.device) -> None:
    """Raise RecipeError for a GPU without products of rows in float8; a CPU emulates them."""
    if emulates_float8(device.type):
        return
    seen = f"an {device_kind(device.type)} device"
    # AMD's that have them want other recipes of torchao's: nobody has tried.
    if device_kind(device.type) == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) >= _FLOAT8_CAPABILITY:
            return
        seen = f"{torch.cuda.get_device_name(device)} of compute capability {major}.{minor}"
    problem = f"{FLOAT8}, but {seen} has no products in it"
    remedy = "set precision.compute=bfloat16, or cluster.device=cpu, which emulates them"
    raise RecipeError("precision.compute", problem, remedy)


def misses_profile(cluster: Cluster) -> bool:
    """Whether ``auto`` would fall to the CPU of a node whose profile describes its devices.

    Without a scheduler the profile may be of this very CPU.
    """
    described = cluster.scheduler != "none" and not isinstance(cluster.hardware, str)
    return described and cluster.device == "auto" and device_type("auto") == "cpu"


def count_devices(kind: str) -> int:
    """Count the GPUs, or tiles of GPUs, that torch sees."""
    return torch.cuda.device_count() if kind == "cuda" else torch.xpu.device_count()


def check_devices(cluster: Cluster) -> None:
    """Refuse a machine whose devices are not those that the recipe counts on.

    Raises:
        RecipeError: too few devices or none, under a scheduler another number than the
            profile says, GPUs whose tiles are not devices, or others beside a rank's own.
    """
    kind = device_type(cluster.device)
    if misses_profile(cluster):
        assert not isinstance(cluster.hardware, str)
        found = f"auto, but torch {torch.__version__} sees no GPU here"
        problem = f"{found}, and the profile's hardware is {cluster.hardware.device}"
        ask = _TELL.format(cluster.devices_per_node)
        remedy = f"{ask}, or load a torch that was built for it, or set cluster.device=cpu"
        raise RecipeError("cluster.device", problem, remedy)
    if kind == "cpu":
        return
    # Where the variable is not set, old drivers show whole GPUs: then the count tells.
    hierarchy = os.environ.get(_HIERARCHY, _TILES_ARE_DEVICES[0])
    if kind == "xpu" and hierarchy.upper() not in _TILES_ARE_DEVICES:
        problem = f"{hierarchy} shows a GPU of two tiles as one device, but a rank has one tile"
        raise RecipeError(_HIERARCHY, problem, f"export {_HIERARCHY}=FLAT")
    wanted, seen = cluster.devices_per_node, count_devices(kind)
    kind = kind if cluster.device == "auto" else cluster.device
    if seen == 0:
        alone = cluster.scheduler == "none"
        other = "leave cluster.device=auto" if alone else _TELL.format(wanted)
        problem = f"{kind}, but torch {torch.__version__} sees no such device here"
        remedy = f"{other}, or load a torch that was built for it"
        raise RecipeError("cluster.device", problem, remedy)
    if (mask := own_mask(cluster)) is not None:
        if seen != 1:
            problem = f"{os.environ[mask]} is to show one device, but torch sees {seen} here"
            remedy = "cluster.site.rank_environment={} shows each rank all of its node's"
            raise RecipeError(mask, problem, remedy)
    elif seen < wanted or (seen > wanted and cluster.scheduler != "none"):
        problem = f"{wanted} {kind} devices, one a rank, but torch sees {seen} here"
        raise RecipeError("cluster.devices_per_node", problem, _remedy(kind, cluster, seen))


def own_mask(cluster: Cluster) -> str | None:
    """Name the variable by which this rank sees its own device alone, if its site sets one.

    What looks at a whole node, before the ranks start, sees all: Slurm's own mask names them.
    """
    mask = cluster.rank_mask or ""
    shown = os.environ.get(mask, "")
    return mask if shown and "," not in shown else None


def _remedy(kind: str, cluster: Cluster, seen: int) -> str:
    name, wanted = DEVICE_MASKS[kind], cluster.devices_per_node
    mask = os.environ.get(name)
    if mask is not None and len(mask.split(",")) != wanted:
        return f"unset {name}, now {mask}: a rank finds its device by its number"
    if cluster.scheduler == "none":
        ways = [f"set cluster.ranks={seen}", "set cluster.device=cpu"]
    else:
        ways = [f"set cluster.devices_per_node={seen}"]
        if seen < wanted:
            ways = [_TELL.format(wanted), *ways]
    if kind == "xpu" and seen < cluster.devices_per_node:
        ways = [f"export {_HIERARCHY}=FLAT, under which each tile is a device", *ways]
    return ", or ".join(ways)


def group_backend(kind: str) -> str:
    """Name what joins ranks on such devices; raise RecipeError where torch lacks it."""
    backend = _BACKENDS[kind]
    if not dist.is_backend_available(backend):
        missing = f"torch {torch.__version__} was built without it"
        problem = f"{kind}, whose ranks {backend} joins, but {missing}"
        remedy = f"load a torch for {kind} devices that has {backend}, or set cluster.ranks=1"
        raise RecipeError("cluster.device", problem, remedy)
    return backend


def lone_backend(kind: str) -> str:
    """Name what a world of one rank on such a device has: the device's own where torch has it.

    Also a rank alone gathers sharded weights on its device, which gloo refuses for a GPU's.
    """
    backend = _BACKENDS[kind]
    return backend if dist.is_backend_available(backend) else _BACKENDS["cpu"]


def peak_memory_bytes(device: torch.device) -> int:
    """Read the most that tensors took on ``device`` so far, on a CPU the whole process."""
    if device.type != "cpu":
        return cast("int", torch.get_device_module(device).max_memory_allocated(device))
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    # Linux counts into `ru_maxrss` what the process was before it became this program.
    lines = dict(line.split(":", 1) for line in status.read_text("utf-8").splitlines())
    return int(lines["VmHWM"].removesuffix("kB")) * 1024
