"""The weights of a checkpoint, without the optimizer's state."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load

from components.build import build
from components.checkpoint.marker import Marker
from components.checkpoint.reading import PieceReader, read_pieces
from components.checkpoint.state import WEIGHTS


def load_weights(checkpoint: Path, marker: Marker, section: Mapping[str, Any]) -> nn.Module:
    """Build the recipe's model on the CPU and fill it, whatever layout wrote the checkpoint."""
    with torch.device("meta"):
        model: nn.Module = build(section, "model")
    model = model.to_empty(device="cpu")
    tensors = {f"{WEIGHTS}{name}": value for name, value in model.state_dict().items()}
    reader = PieceReader(checkpoint, read_pieces(checkpoint, marker.files))
    with warnings.catch_warnings():
        alone = "torch.distributed is disabled"
        warnings.filterwarnings("ignore", message=alone)  # meant: an export is one process
        load(tensors, storage_reader=reader, no_dist=True)
    return model
