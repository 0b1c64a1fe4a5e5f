"""Devices of this machine: their kind, their number, their memory, the backend between ranks.

A rank uses the device with the rank's local number, or the first device if the site shows each
rank only its own. Torch calls AMD GPUs ``cuda``. On two-tile Intel GPUs a tile is a device:
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
_TELL = "report this to the site if other nodes have {}"
_FLOAT8_CAPABILITY = (8, 9)  # Ada; `torch._scaled_mm` refuses older GPUs
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def device_type(wanted: str) -> str:
    """Return torch's name of the device type; resolve ``auto`` for this machine."""
    if wanted != "auto":
        return "cuda" if wanted == "rocm" else wanted
    if torch.cuda.is_available():
        return "cuda"
    return "xpu" if torch.xpu.is_available() else "cpu"


def device_kind(wanted: str) -> str:
    """Return the device's name in a profile: ``rocm`` if this torch is built for AMD GPUs."""
    kind = device_type(wanted)
    return "rocm" if kind == "cuda" and torch.version.hip else kind


def compute_dtype(compute: str, device: torch.device) -> torch.dtype:
    """Return the compute dtype: resolve ``auto``; for float8, the dtype of other operations."""
    if compute == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if compute == FLOAT8:
        return torch.bfloat16
    return _dtype(compute)


class StateDtypes(NamedTuple):
    """Dtypes of weights, of masters and moments, and of gradient sums.

    ``accumulate`` is the dtype of sums over microbatches, ``reduce`` of sums over ranks.
    """

    weights: torch.dtype
    master: torch.dtype
    accumulate: torch.dtype
    reduce: torch.dtype

    @classmethod
    def from_precision(cls, precision: Precision, device: torch.device) -> "StateDtypes":
        """Resolve ``auto`` for ``device``."""
        computed = compute_dtype(precision.compute, device)
        # Torchao rounds each row separately, from float32.
        computed = torch.float32 if precision.compute == FLOAT8 else computed
        weights = computed if precision.weights == "auto" else _dtype(precision.weights)
        finer = torch.promote_types(weights, torch.float32)
        master = finer if precision.master == "auto" else _dtype(precision.master)
        return cls(weights, master, _dtype(precision.accumulate), _dtype(precision.reduce))


def _dtype(name: str) -> torch.dtype:
    return cast("torch.dtype", getattr(torch, name))


def emulates_float8(kind: str) -> bool:
    """Return whether devices of ``kind`` emulate float8 products, which they lack."""
    return kind == "cpu"


def emulation_of(recipe: Recipe, kind: str) -> str | None:
    """Describe how devices of ``kind`` emulate the recipe's float8; None if they do not."""
    if recipe.precision.compute != FLOAT8 or not emulates_float8(kind):
        return None
    return f"emulated: a {kind} rounds the numbers and multiplies in float32 (slower)"


def check_float8_device(device: torch.device) -> None:
    """Raise RecipeError for a GPU without rowwise float8 products; a CPU emulates them."""
    if emulates_float8(device.type):
        return
    device_name = f"an {device_kind(device.type)} device"
    # AMD GPUs with float8 products need other torchao recipes, which are untested.
    if device_kind(device.type) == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) >= _FLOAT8_CAPABILITY:
            return
        device_name = (
            f"{torch.cuda.get_device_name(device)} of compute capability {major}.{minor}"
        )
    problem = f"{FLOAT8}, but {device_name} has no float8 products"
    remedy = "set precision.compute=bfloat16, or cluster.device=cpu, which emulates float8"
    raise RecipeError("precision.compute", problem, remedy)


def misses_profile(cluster: Cluster) -> bool:
    """Return whether ``auto`` would choose the CPU although a profile describes the devices.

    Without a scheduler the result is False, because the profile may describe this CPU.
    """
    described = cluster.scheduler != "none" and not isinstance(cluster.hardware, str)
    return described and cluster.device == "auto" and device_type("auto") == "cpu"


def count_devices(kind: str) -> int:
    """Return the number of GPUs, or GPU tiles, that torch sees."""
    return torch.cuda.device_count() if kind == "cuda" else torch.xpu.device_count()


def check_devices(cluster: Cluster) -> None:
    """Check that this machine has the devices that the recipe expects.

    Raises RecipeError for too few devices or none; under a scheduler, for more devices than in
    the profile; for GPUs whose tiles are not devices; if a rank sees other ranks' devices.
    """
    kind = device_type(cluster.device)
    if misses_profile(cluster):
        assert not isinstance(cluster.hardware, str)
        reason = f"auto, but torch {torch.__version__} sees no GPU here"
        problem = f"{reason}, and the profile's hardware is {cluster.hardware.device}"
        ask = _TELL.format(cluster.devices_per_node)
        remedy = f"{ask}, load a torch built for the device, or set cluster.device=cpu"
        raise RecipeError("cluster.device", problem, remedy)
    if kind == "cpu":
        return
    # If the variable is not set, old drivers show whole GPUs. The count below detects that.
    hierarchy = os.environ.get(_HIERARCHY, _TILES_ARE_DEVICES[0])
    if kind == "xpu" and hierarchy.upper() not in _TILES_ARE_DEVICES:
        problem = f"{hierarchy} shows a GPU of two tiles as one device, but a rank has one tile"
        raise RecipeError(_HIERARCHY, problem, f"export {_HIERARCHY}=FLAT")
    wanted, visible = cluster.devices_per_node, count_devices(kind)
    kind = kind if cluster.device == "auto" else cluster.device
    if visible == 0:
        alone = cluster.scheduler == "none"
        other = "leave cluster.device=auto" if alone else _TELL.format(wanted)
        problem = f"{kind}, but torch {torch.__version__} sees no such device here"
        remedy = f"{other}, or load a torch built for the device"
        raise RecipeError("cluster.device", problem, remedy)
    if (mask := own_mask(cluster)) is not None:
        if visible != 1:
            problem = f"{os.environ[mask]} is to show one device, but torch sees {visible} here"
            remedy = "cluster.site.rank_environment={} shows each rank all of its node's"
            raise RecipeError(mask, problem, remedy)
    elif visible < wanted or (visible > wanted and cluster.scheduler != "none"):
        problem = f"{wanted} {kind} devices, one a rank, but torch sees {visible} here"
        raise RecipeError("cluster.devices_per_node", problem, _remedy(kind, cluster, visible))


def own_mask(cluster: Cluster) -> str | None:
    """Return the variable that masks all devices except this rank's own, if the site sets one.

    Before the ranks start, a process sees the whole node: Slurm's own mask lists all devices.
    """
    mask = cluster.rank_mask or ""
    shown = os.environ.get(mask, "")
    return mask if shown and "," not in shown else None


def _remedy(kind: str, cluster: Cluster, seen: int) -> str:
    name, wanted = DEVICE_MASKS[kind], cluster.devices_per_node
    mask = os.environ.get(name)
    if mask is not None and len(mask.split(",")) != wanted:
        return f"unset {name} (now {mask}): a rank selects its device by index"
    if cluster.scheduler == "none":
        fixes = [f"set cluster.ranks={seen}", "set cluster.device=cpu"]
    else:
        fixes = [f"set cluster.devices_per_node={seen}"]
        if seen < wanted:
            fixes = [_TELL.format(wanted), *fixes]
    if kind == "xpu" and seen < cluster.devices_per_node:
        fixes = [f"export {_HIERARCHY}=FLAT, under which each tile is a device", *fixes]
    return ", or ".join(fixes)


def group_backend(kind: str) -> str:
    """Return the process group backend for ``kind``; raise RecipeError if torch lacks it."""
    backend = _BACKENDS[kind]
    if not dist.is_backend_available(backend):
        missing = f"torch {torch.__version__} was built without it"
        problem = f"{kind} ranks need {backend}, but {missing}"
        remedy = f"load a torch for {kind} devices with {backend}, or set cluster.ranks=1"
        raise RecipeError("cluster.device", problem, remedy)
    return backend


def lone_backend(kind: str) -> str:
    """Return the backend for a single rank: the backend of ``kind`` if torch has it, else gloo.

    A single rank also gathers sharded weights on its device, which gloo refuses on a GPU.
    """
    backend = _BACKENDS[kind]
    return backend if dist.is_backend_available(backend) else _BACKENDS["cpu"]


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of tensors on ``device``; on a CPU, of the whole process."""
    if device.type != "cpu":
        return cast("int", torch.get_device_module(device).max_memory_allocated(device))
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    # On Linux `ru_maxrss` includes the process's memory before it executed this program.
    lines = dict(line.split(":", 1) for line in status.read_text("utf-8").splitlines())
    return int(lines["VmHWM"].removesuffix("kB")) * 1024


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Return the free and total bytes of a device; for the CPU, Linux's available memory."""
    if device.type != "cpu":
        free, total = torch.get_device_module(device.type).mem_get_info(device)
        return int(free), int(total)
    # Memory available without swapping: proc(5), MemAvailable.
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable"))
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(line.split()[1]) * 1024, whole
