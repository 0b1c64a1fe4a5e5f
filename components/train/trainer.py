"""Lightning's trainer as runs and proofs use it; what it would add by itself is ours."""

import logging
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning.pytorch import Callback, Trainer

from components.spec.recipe import Recipe
from components.train.accelerators import register_xpu
from components.train.devices import check_devices, device_type
from components.train.strategy import MeshStrategy


def make_trainer(
    *,
    recipe: Recipe,
    callbacks: Sequence[Callback],
    most_steps: int | None,
) -> Trainer:
    """Make a trainer without bars, samplers and checkpoints of its own.

    ``most_steps`` ends a run before the recipe does; ``None`` does not.

    Raises:
        RecipeError: the devices of this machine are not those of the recipe.
    """
    check_devices(recipe.cluster)
    register_xpu()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*num_workers.*")  # reading takes microseconds
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # a login node
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    return Trainer(
        accelerator=device_type(recipe.cluster.device),
        devices=recipe.cluster.devices_per_node,
        num_nodes=recipe.cluster.nodes,
        strategy=MeshStrategy(recipe.parallelism),
        max_epochs=1,
        limit_train_batches=most_steps,
        log_every_n_steps=1,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
    )


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Let an interrupt pass as what it is: Lightning makes of it an exit with status 1.

    It has all later ones ignored, too.

    Raises:
        KeyboardInterrupt: there was one.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, before)
            raise ended.__context__ from None
        raise
