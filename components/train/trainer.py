"""Lightning trainer, strategy and accelerators."""

import logging
import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.types import _DEVICE
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import AcceleratorRegistry, CUDAAccelerator
from lightning.pytorch.accelerators.accelerator import Accelerator
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.constants import default_pg_timeout
from typing_extensions import TypeVar  # typing's has no default before Python 3.13

from components.config.recipe import Recipe
from components.config.schema.sections import Cluster, Parallelism
from components.distributed import devices
from components.distributed.mesh import Mesh, build_mesh

T = TypeVar("T", bound=Trainer, default=Trainer)


class XPUAccelerator(Accelerator):
    """Accelerator that assigns each rank the Intel GPU or tile with the rank's local number."""

    def setup_device(self, device: torch.device) -> None:
        assert device.type == "xpu", device
        torch.xpu.set_device(device)

    def get_device_stats(self, device: _DEVICE) -> dict[str, Any]:
        return torch.xpu.memory_stats(device)

    def teardown(self) -> None:
        """Keep the allocator's cache: emptying it after an xccl all-gather leaks memory.

        https://github.com/argonne-lcf/AuroraBugTracking, bugs.md, 143.
        """

    @staticmethod
    def parse_devices(devices: int | list[int]) -> list[int]:
        return list(range(devices)) if isinstance(devices, int) else devices

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("xpu", number) for number in devices]

    @staticmethod
    def auto_device_count() -> int:
        return torch.xpu.device_count()

    @staticmethod
    def is_available() -> bool:
        return torch.xpu.is_available()

    @staticmethod
    def name() -> str:
        return "xpu"


class OwnDeviceAccelerator(CUDAAccelerator):
    """Accelerator that assigns each rank the first device, the only one visible to the rank."""

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        assert isinstance(devices, int), devices
        return [0] * devices  # one for each rank of the node

    @staticmethod
    def name() -> str:
        return "own device"


def register_xpu() -> None:
    """Register our accelerator for ``Trainer(accelerator="xpu")``. Can be repeated."""
    AcceleratorRegistry.register("xpu", XPUAccelerator, "Intel GPUs", override=True)


class MeshStrategy(ModelParallelStrategy):
    """Strategy with our own mesh of all ranks, not Lightning's. The module shards its model."""

    mesh: Mesh

    def __init__(self, parallelism: Parallelism) -> None:
        super().__init__()
        self._parallelism = parallelism

    def setup_environment(self) -> None:
        """Create the process group and the mesh; RecipeError if torch lacks the backend."""
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        kind = self.root_device.type
        if "RANK" not in os.environ:  # a world of one needs no port
            store = HashStore()
            dist.init_process_group(
                devices.lone_backend(kind), store=store, rank=0, world_size=1
            )
        elif not dist.is_initialized():  # the caller may have created the group
            # A group bound to a device creates the mesh's groups by a split, which is faster
            # with NCCL. xccl does not support the split:
            # https://github.com/pytorch/pytorch/issues/186548.
            dist.init_process_group(
                devices.group_backend(kind),
                timeout=default_pg_timeout,
                device_id=self.root_device if kind == "cuda" else None,
            )
        self.mesh = build_mesh(kind, self._parallelism)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return tensor if self.world_size == 1 else super().reduce(tensor, group, reduce_op)

    def teardown(self) -> None:
        super().teardown()
        if dist.is_initialized():
            dist.destroy_process_group()


def rank_here() -> int:
    """Return the rank of this process, also before the process group exists."""
    return int(os.environ.get("RANK", "0"))


def _accelerator(cluster: Cluster) -> str | Accelerator:
    kind = devices.device_type(cluster.device)
    alone = kind == "cuda" and devices.own_mask(cluster) is not None
    return OwnDeviceAccelerator() if alone else kind


def make_trainer(
    *,
    recipe: Recipe,
    callbacks: Sequence[Callback],
    kind: type[T] = Trainer,  # type: ignore[assignment]  # mypy has no bound defaults
    most_steps: int | None = None,
    **options: Any,
) -> T:
    """Return a trainer for at most ``most_steps`` steps, without Lightning's own parts.

    Raises RecipeError if the devices of this machine do not match the recipe.
    """
    devices.check_devices(recipe.cluster)
    register_xpu()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # a login node
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # from Lightning's use of torch
    warnings.filterwarnings("ignore", message="GPU available but not used")  # intended
    # All ranks log the same figures, which were summed over ranks before.
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
    return kind(
        accelerator=_accelerator(recipe.cluster),
        devices=recipe.cluster.devices_per_node,
        num_nodes=recipe.cluster.nodes,
        strategy=MeshStrategy(recipe.parallelism),
        max_epochs=1,
        limit_train_batches=most_steps,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=2,  # never: a callback validates by tokens
        log_every_n_steps=1,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        enable_autolog_hparams=False,
        use_distributed_sampler=False,
        **options,
    )


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Raise KeyboardInterrupt unchanged: Lightning makes it an exit with status 1.

    Lightning also ignores further interrupts. This restores the signal handler.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ended:
        if not isinstance(ended.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, before)
        raise ended.__context__ from None
