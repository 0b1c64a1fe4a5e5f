"""What the planner says of cast weights, seen in torch itself."""

import torch
from torch import Tensor, nn


def test_each_microbatch_in_flight_keeps_its_own_cast_of_a_weight() -> None:
    layer, storages = nn.Linear(64, 48, bias=False), set[int]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bfloat16 and tensor.numel() == layer.weight.numel():
            storages.add(tensor.untyped_storage().data_ptr())
        return tensor

    graphs = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                graphs.append(layer(torch.randn(8, 64, requires_grad=True)))
    assert len(graphs) == len(storages) == 3
