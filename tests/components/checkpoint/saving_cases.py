"""One checkpoint, saved or loaded at once: what most cases need."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from components.checkpoint import loading
from components.checkpoint.metadata import RunProgress
from components.checkpoint.retention import Policy
from components.checkpoint.saving import HostBuffers, Saver, State
from components.distributed.node_tree import NodeTree

FINGERPRINT = "of one recipe"
ALL = Policy(last=1_000, every_tokens="none", best=0)


def make_saver(folder: Path, **changes: Any) -> Saver:
    """Make a saver over the default group, which a case has to itself while it saves."""
    assert dist.group.WORLD is not None
    given: dict[str, Any] = {
        "folder": folder,
        "fingerprint": FINGERPRINT,
        "group": NodeTree(dist.group.WORLD),
        "stager": None,
        "policy": ALL,
        "files": 1_024,
        "retry_seconds": 0.0,
        "copy_to": None,
    }
    return Saver(**given | changes)


def make_stager_here() -> Any:
    return HostBuffers(torch.device("cpu"))


def save_checkpoint(folder: Path, state: State, progress: RunProgress, **changes: Any) -> Path:
    """Save all that a run needs, and wait for it."""
    folder.mkdir(exist_ok=True)  # which a run does before its ranks start
    saver = make_saver(folder, **changes)
    try:
        begun = saver.start_save(state, progress, kinds=["tokens"], held_out_loss=None)
        (finished,) = [*begun, *saver.wait_for_save()]
    finally:
        saver.close()
    return finished.folder


def load_checkpoint(checkpoint: Path, state: State) -> RunProgress:
    """Check a checkpoint and fill the state from it."""
    marker = loading.check_together(checkpoint)
    return loading.load_checkpoint(checkpoint, marker, state, fingerprint=FINGERPRINT)
