"""Lightning's trainer, strategy and accelerators, as runs and proofs use them."""

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
    """Give each rank the Intel GPU, or the tile of one, that has its number on the node."""

    def setup_device(self, device: torch.device) -> None:
        assert device.type == "xpu", device
        torch.xpu.set_device(device)

    def get_device_stats(self, device: _DEVICE) -> dict[str, Any]:
        return torch.xpu.memory_stats(device)

    def teardown(self) -> None:
        """Leave the allocator's cache: emptied after an all-gather of xccl, it leaks.

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
    """Give each rank the first device, which is the only one that its site shows it."""

    @staticmethod
    def parse_devices(devices: int | str | list[int]) -> list[int]:
        assert isinstance(devices, int), devices
        return [0] * devices  # one for each rank of the node

    @staticmethod
    def name() -> str:
        return "own device"


def register_xpu() -> None:
    """Make ``Trainer(accelerator="xpu")`` mean ours; again does no harm."""
    AcceleratorRegistry.register("xpu", XPUAccelerator, "Intel GPUs", override=True)


class MeshStrategy(ModelParallelStrategy):
    """Set up one mesh for all ranks, not Lightning's; the module parallelizes its model."""

    mesh: Mesh

    def __init__(self, parallelism: Parallelism) -> None:
        super().__init__()
        self._parallelism = parallelism

    def setup_environment(self) -> None:
        """Join the ranks that torchrun started, and make the mesh.

        Raises:
            RecipeError: this torch has nothing that joins such devices.
        """
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        kind = self.root_device.type
        if "RANK" not in os.environ:  # a world of one needs no port
            store = HashStore()
            dist.init_process_group(
                devices.lone_backend(kind), store=store, rank=0, world_size=1
            )
        elif not dist.is_initialized():  # whoever called us may have joined the ranks
            # Bound to a device, a group makes the mesh's groups by splitting itself, which
            # saves NCCL time. Not so xccl, which cannot:
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
    """Return the number of this process among the ranks, also before they are connected."""
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
    """Make a trainer without samplers and checkpoints of its own, of at most so many steps.

    Raises:
        RecipeError: the devices of this machine are not those of the recipe.
    """
    devices.check_devices(recipe.cluster)
    register_xpu()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # a login node
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    warnings.filterwarnings("ignore", message="GPU available but not used")  # asked for so
    # All ranks log the same: figures are summed over them before.
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
    return kind(
        accelerator=_accelerator(recipe.cluster),
        devices=recipe.cluster.devices_per_node,
        num_nodes=recipe.cluster.nodes,
        strategy=MeshStrategy(recipe.parallelism),
        max_epochs=1,
        limit_train_batches=most_steps,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=2,  # never: a callback validates, on the clock of tokens
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
    """Let an interrupt pass; Lightning makes of it an exit with status 1, and ignores others.

    Raises:
        KeyboardInterrupt: there was one.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ended:
        if not isinstance(ended.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, before)
        raise ended.__context__ from None
