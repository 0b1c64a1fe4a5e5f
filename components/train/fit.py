"""Put the parts together on one rank and train; the ranks read the run folder, nothing else."""

import logging
import time
import warnings
from pathlib import Path

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console

from components.data.manifest import Manifest
from components.data.samples import HeldOutWindows
from components.spec.recipe import Recipe, read_recipe
from components.train.batches import StepBatches
from components.train.checkpoints import Checkpoints, StopOnRequest
from components.train.display import Display
from components.train.held_out import HeldOutLoss
from components.train.journal import Journal
from components.train.module import Pretraining
from components.train.results import summarize
from components.train.run_folder import RunFolder
from components.train.strategy import MeshStrategy, device_type, rank_here


def fit(path: Path) -> str:
    """Train the run in ``path`` from its newest checkpoint to its last token.

    Returns ``finished`` or ``stopped``.
    """
    began = time.perf_counter()
    folder = RunFolder(path)
    recipe = read_recipe(folder.recipe)
    data = folder.read_json("data.json")
    manifest = Manifest.read(Path(data["folder"]))
    display = Display(Console(stderr=True, quiet=rank_here() > 0))
    logger = _logger(folder) if rank_here() == 0 else None
    journal = Journal(file=folder.metrics, logger=logger)
    module = Pretraining(
        recipe=recipe,
        batches=lambda rank: StepBatches(
            recipe=recipe, folder=Path(data["folder"]), manifest=manifest, rank=rank
        ),
        eod_id=manifest.tokenizer.eod_id,
    )
    windows = HeldOutWindows(
        folder=Path(data["folder"]),
        manifest=manifest,
        sequence_length=recipe.budget.sequence_length,
        max_windows=recipe.evaluation.max_windows_per_source,
    )
    held_out = HeldOutLoss(
        windows=windows, journal=journal, every_tokens=recipe.evaluation.every_tokens
    )
    checkpoints = Checkpoints(
        folder=folder.checkpoints,
        journal=journal,
        every_tokens=recipe.checkpoint.every_tokens,
        keep=recipe.checkpoint.keep,
    )
    callbacks: list[Callback] = [
        StopOnRequest(file=folder.stop, say=display.say),
        journal,
        held_out,
        checkpoints,
        display,
    ]
    trainer = _trainer(recipe, logger, callbacks)
    trainer.fit(module)
    if rank_here() == 0:
        results = summarize(
            module=module,
            journal=journal,
            metrics=folder.metrics,
            unigram=data["unigram"],
            began=began,
        )
        folder.write_json("results.json", results)
    return "stopped" if module.stopping else "finished"


def _logger(folder: RunFolder) -> TensorBoardLogger:
    return TensorBoardLogger(save_dir=folder.path, name="", version="tensorboard")


def _trainer(
    recipe: Recipe, logger: TensorBoardLogger | None, callbacks: list[Callback]
) -> Trainer:
    """Make Lightning's trainer; what it would add by itself (bars, samplers) is ours."""
    device = device_type(recipe.cluster.device)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Windows are read in microseconds; the second is Lightning's own use of torch.
    warnings.filterwarnings("ignore", message=".*(num_workers|LeafSpec).*")
    return Trainer(
        accelerator=device,
        devices=recipe.cluster.devices_per_node,
        num_nodes=recipe.cluster.nodes,
        strategy=MeshStrategy(),
        max_epochs=1,
        log_every_n_steps=1,
        logger=logger or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
    )
