"""Seeing operators on their way to the kernels, and what stands for tensors and groups.

    TorchDispatchMode   sees operators as they leave the dispatcher, after autograd and DTensor;
                        `torch.overrides.TorchFunctionMode` sees calls of Python alone
    FakeTensorMode      makes tensors without values that know their device; `meta` does not
    active_fake_mode    the one that is on
    FakeStore           what the process group `fake` meets at, whose collectives return at once
    tree_leaves         the tensors in an operator's arguments or results

All were seen in 2.10 to 2.15.
"""

from typing import Any

from torch import Tensor
from torch._guards import active_fake_mode
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = [
    "FakeStore",
    "FakeTensorMode",
    "TorchDispatchMode",
    "active_fake_mode",
    "packet_of",
    "qualified_name",
    "storage_key",
    "tree_leaves",
]


def packet_of(operator: Any) -> Any:
    """Return what all overloads of an operator belong to, as `torch.ops` has it.

    A dispatch mode is given an overload; formulas are by packet.
    """
    return operator._overloadpacket


def qualified_name(operator: Any) -> str:
    """Name an overload ``namespace.operator``; its public name drags the overload's along."""
    return f"{operator.namespace}.{operator._opname}"


def storage_key(tensor: Tensor) -> int:
    """Return a number that tensors on one storage share, and no other while it lives.

    The public address of its memory is 0 for every fake tensor.
    """
    key: int = tensor.untyped_storage()._cdata
    return key
