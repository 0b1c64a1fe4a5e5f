"""Put the parts together on one rank and train; the ranks read the run folder, nothing else."""

import time
from pathlib import Path

from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console

from components.data.manifest import Manifest
from components.data.samples import HeldOutWindows
from components.spec.recipe import read_recipe
from components.train.batches import StepBatches
from components.train.checkpoints import Checkpoints, StopOnRequest
from components.train.display import Display
from components.train.held_out import HeldOutLoss
from components.train.journal import Journal
from components.train.module import Pretraining
from components.train.results import summarize
from components.train.run_folder import RunFolder
from components.train.strategy import rank_here
from components.train.trainer import make_trainer


def fit(path: Path) -> str:
    """Train the run in ``path`` from its newest checkpoint to its last token.

    Returns ``finished`` or ``stopped``.
    """
    began = time.perf_counter()
    folder = RunFolder(path)
    module = load_module(folder)
    recipe = module.recipe
    data = folder.read_json("data.json")
    display = Display(Console(stderr=True, quiet=rank_here() > 0))
    logger = _logger(folder) if rank_here() == 0 else None
    journal = Journal(file=folder.metrics, logger=logger)
    windows = HeldOutWindows(
        folder=Path(data["folder"]),
        manifest=Manifest.read(Path(data["folder"])),
        sequence_length=recipe.budget.sequence_length,
        max_windows=recipe.evaluation.max_windows_per_source,
    )
    held_out = HeldOutLoss(
        windows=windows, journal=journal, every_tokens=recipe.evaluation.every_tokens
    )
    checkpoints = Checkpoints(
        folder=folder.checkpoints,
        journal=journal,
        settings=recipe.checkpoint,
        say=display.say,
    )
    stop = StopOnRequest(file=folder.stop, say=display.say)
    trainer = make_trainer(
        recipe=recipe,
        logger=logger,
        callbacks=[stop, journal, held_out, checkpoints, display],
        most_steps=None,
    )
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


def load_module(folder: RunFolder) -> Pretraining:
    """Make the module of the run in ``folder``, with the prepared data that it reads."""
    recipe = read_recipe(folder.recipe)
    data = Path(folder.read_json("data.json")["folder"])
    manifest = Manifest.read(data)
    return Pretraining(
        recipe=recipe,
        batches=lambda rank: StepBatches(
            recipe=recipe, folder=data, manifest=manifest, rank=rank
        ),
        eod_id=manifest.tokenizer.eod_id,
    )


def _logger(folder: RunFolder) -> TensorBoardLogger:
    return TensorBoardLogger(save_dir=folder.path, name="", version="tensorboard")
