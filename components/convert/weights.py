"""The weights of a checkpoint, without the optimizer's state."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load

from components.build import build

PREFIX = "model."  # before each weight's name, as the checkpoint has it


def load_weights(checkpoint: Path, section: Mapping[str, Any]) -> nn.Module:
    """Build the recipe's model on the CPU and fill it, whatever layout wrote the checkpoint."""
    with torch.device("meta"):
        model: nn.Module = build(section, "model")
    model = model.to_empty(device="cpu")
    tensors = {f"{PREFIX}{name}": value for name, value in model.state_dict().items()}
    with warnings.catch_warnings():
        alone = "torch.distributed is disabled"
        warnings.filterwarnings("ignore", message=alone)  # meant: an export is one process
        load(tensors, storage_reader=HuggingFaceStorageReader(str(checkpoint)), no_dist=True)
    return model
