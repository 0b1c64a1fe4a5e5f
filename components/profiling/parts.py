"""Parts of a step: the ranges that name them, and the part of each call in a trace.

Module hooks open the ranges during a profile. An operator belongs to the range around it. A
matrix product within a layer, in any module, is one of the ``products``. An operator of a
backward pass belongs to the part of the forward operator that autograd differentiates: both
have the same sequence number.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.profiler import record_function

from components.model.attention import Attention, AttentionCore
from components.model.decoder import Decoder
from components.model.layer import Layer
from components.model.mixers.mixer import Mixer
from components.model.mlp import MLP
from components.model.moe import Experts
from components.model.norms import Norm
from components.profiling.counts import has_formula
from components.profiling.trace import Trace, TraceEvent

PREFIX = "part:"  # of a range's name: part:KIND PATH
_KINDS: Sequence[tuple[type[nn.Module], str]] = (
    (AttentionCore, "core"),
    (Attention, "attention"),
    (Mixer, "attention"),
    (Experts, "experts"),
    (MLP, "mlp"),
    (Norm, "norm"),
    (Layer, "model"),
    (Decoder, "model"),
)


class Ranges:
    """Hooks that open a range around each call of a part of ``decoders``, until removed."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self._handles: list[Any] = []
        for decoder in decoders:
            for path, module in decoder.named_modules():
                kind = next(
                    (name for module_type, name in _KINDS if isinstance(module, module_type)),
                    None,
                )
                if path.rpartition(".")[2] == "readout":
                    kind = "loss"  # any module in place of a readout
                if kind is not None:
                    self._handles += _hook(module, f"{PREFIX}{kind} {path or 'decoder'}")

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()


def _hook(module: nn.Module, name: str) -> tuple[Any, Any]:
    """Open a range around a call. It also closes if recomputation ends inside the call."""
    opened: list[ExitStack] = []  # a stack because calls nest

    def enter_range(*_: object) -> None:
        opened.append(ExitStack())
        opened[-1].enter_context(record_function(name))

    def leave_range(*_: object) -> None:
        opened.pop().close()

    before: Callable[..., None] = enter_range
    first = module.register_forward_pre_hook(before)
    return first, module.register_forward_hook(leave_range, always_call=True)


ATTENTION, PRODUCTS = "attention", "products"
EXPERT_PRODUCTS, ROUTING = "experts: products", "experts: routing"
POINTWISE, REST, LOSS = "norms and activations", "rest of the model", "head and loss"
GRADIENTS, OPTIMIZER = "gradients", "optimizer"
NEXT_BATCH = "next batch"  # the main thread's wait for data
COMMUNICATION, DATA, HOST = "communication", "data", "host"
PARTS = (
    *(ATTENTION, PRODUCTS, EXPERT_PRODUCTS, ROUTING, POINTWISE, REST, LOSS),
    *(GRADIENTS, OPTIMIZER, COMMUNICATION, DATA, HOST),
)
Direction = Literal["forward", "backward", "recomputed", ""]


class RangeScope(NamedTuple):
    """Part of the products inside a range, and part of all other operators inside."""

    products: str
    others: str


# Operators outside the model's ranges and the update: sums, norm and clipping of gradients,
# loss scaling, values that ranks agree on.
_OUTSIDE = RangeScope(GRADIENTS, GRADIENTS)
_SCOPES: Mapping[str, RangeScope] = {
    "core": RangeScope(ATTENTION, ATTENTION),
    "attention": RangeScope(PRODUCTS, ATTENTION),  # heads, rotation
    "experts": RangeScope(EXPERT_PRODUCTS, ROUTING),
    "mlp": RangeScope(PRODUCTS, POINTWISE),
    "norm": RangeScope(POINTWISE, POINTWISE),
    "model": RangeScope(PRODUCTS, REST),  # embedding, residual sums
    "loss": RangeScope(LOSS, LOSS),
}
_ENGINE = "autograd::engine::evaluate_function"
_COMMUNICATION = ("c10d::", "_c10d_functional", "fsdp::", "record_param_comms", "nccl:")


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Part, path and direction of a call. ``in_product``: within a product or attention."""

    scope: RangeScope = _OUTSIDE
    path: str = ""
    direction: Direction = ""
    in_step: bool = False
    in_product: bool = False

    @property
    def part_name(self) -> str:
        return self.scope.products if self.in_product else self.scope.others


def is_operator(event: TraceEvent) -> bool:
    """Whether a call's own time is an operator's, not Python's or the autograd engine's."""
    named = "::" in event.name and not event.name.startswith("autograd::")
    return event.category == "cpu_op" and (named or _communicates(event))


def places_of(trace: Trace) -> dict[TraceEvent, CallPlace]:
    """Return the place of every host call. Forward passes are processed first."""
    places: dict[TraceEvent, CallPlace] = {}
    forwards: dict[int, CallPlace] = {}
    for event in (*trace.main, *trace.others):
        above = CallPlace() if event.parent is None else places[event.parent]
        places[event] = here = _enter(event, above, forwards)
        number = event.args.get("Sequence number")
        if number is not None and here.direction in {"forward", ""}:
            # Of several calls with this number, the last creates the autograd node.
            forwards[number] = here
    return places


def _enter(event: TraceEvent, above: CallPlace, forwards: Mapping[int, CallPlace]) -> CallPlace:
    if event.is_step:
        return replace(above, in_step=True)
    if event.name == NEXT_BATCH:
        return CallPlace(scope=RangeScope(DATA, DATA), in_step=True)
    if event.name.startswith("Optimizer.step#"):
        return replace(above, scope=RangeScope(OPTIMIZER, OPTIMIZER))
    direction: Direction
    if event.name.startswith(PREFIX):
        kind, _, path = event.name.removeprefix(PREFIX).partition(" ")
        again = above.direction in {"backward", "recomputed"}
        direction = "recomputed" if again else "forward"
        return replace(above, scope=_SCOPES[kind], path=path, direction=direction)
    if event.name.startswith(_ENGINE):  # takes the place of the forward operator
        forward = forwards.get(event.args.get("Sequence number", -1), CallPlace())
        direction = "backward" if forward.path else ""
        return replace(forward, direction=direction, in_step=True, in_product=False)
    if _communicates(event):
        return replace(above, scope=RangeScope(COMMUNICATION, COMMUNICATION))
    return replace(above, in_product=True) if has_formula(event.name) else above


def _communicates(event: TraceEvent) -> bool:
    return event.name.startswith(_COMMUNICATION)
