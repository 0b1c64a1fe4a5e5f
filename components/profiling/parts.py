"""Parts of a step, the ranges that name them, and to which part each call of a trace belongs.

Ranges are hooks on modules, from the begin of a profile to its end. An operator belongs to the
range around it; a matrix product within a layer is one of the ``products``, whichever module
has it. Operators of a backward pass belong where the forward operator does that autograd
differentiates: both have its sequence number.
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
from components.model.mlp import MLP
from components.model.moe import Experts
from components.model.norms import Norm
from components.profiling.counts import has_formula
from components.profiling.trace import Trace, TraceEvent

PREFIX = "part:"  # of a range's name: part:KIND PATH
_KINDS: Sequence[tuple[type[nn.Module], str]] = (
    (AttentionCore, "core"),
    (Attention, "attention"),
    (Experts, "experts"),
    (MLP, "mlp"),
    (Norm, "norm"),
    (Layer, "model"),
    (Decoder, "model"),
)


class Ranges:
    """Open a range around each call of a part of ``decoders``, until they are removed."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self._handles: list[Any] = []
        for decoder in decoders:
            for path, module in decoder.named_modules():
                kind = next((name for one, name in _KINDS if isinstance(module, one)), None)
                if path.rpartition(".")[2] == "readout":
                    kind = "loss"  # whatever stands for a readout
                if kind is not None:
                    self._handles += _hook(module, f"{PREFIX}{kind} {path or 'decoder'}")

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _hook(module: nn.Module, name: str) -> tuple[Any, Any]:
    """Enter before the call and leave after it, also where a recomputation ends within it."""
    opened: list[ExitStack] = []  # a stack, since calls nest

    def enter(*_: object) -> None:
        opened.append(ExitStack())
        opened[-1].enter_context(record_function(name))

    def leave(*_: object) -> None:
        opened.pop().close()

    before: Callable[..., None] = enter
    first = module.register_forward_pre_hook(before)
    return first, module.register_forward_hook(leave, always_call=True)


ATTENTION, PRODUCTS = "attention", "products"
EXPERT_PRODUCTS, ROUTING = "experts: products", "experts: routing"
POINTWISE, REST, LOSS = "norms and activations", "rest of the model", "head and loss"
GRADIENTS, OPTIMIZER = "gradients", "optimizer"
NEXT_BATCH = "next batch"  # what the main thread waits for data
COMMUNICATION, DATA, HOST = "communication", "data", "host"
PARTS = (
    *(ATTENTION, PRODUCTS, EXPERT_PRODUCTS, ROUTING, POINTWISE, REST, LOSS),
    *(GRADIENTS, OPTIMIZER, COMMUNICATION, DATA, HOST),
)
Direction = Literal["forward", "backward", "recomputed", ""]


class RangeScope(NamedTuple):
    """To which part the products inside a range belong, and to which all else."""

    products: str
    others: str


# What is in no range of the model and not the update: sums, norm and clipping of gradients,
# scaling of losses, figures that ranks agree on.
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
    """Where a call stands; ``counted`` is the operator around it whose FLOPs are known."""

    scope: RangeScope = _OUTSIDE
    path: str = ""
    direction: Direction = ""
    in_step: bool = False
    counted: TraceEvent | None = None

    @property
    def part(self) -> str:
        return self.scope.others if self.counted is None else self.scope.products


def is_operator(event: TraceEvent) -> bool:
    """Whether a call's own time is an operator's: else it is Python's, or the engine's."""
    named = "::" in event.name and not event.name.startswith("autograd::")
    return event.category == "cpu_op" and (named or _communicates(event))


def places_of(trace: Trace) -> dict[TraceEvent, CallPlace]:
    """Find the place of every call on the host, the forward passes first."""
    places: dict[TraceEvent, CallPlace] = {}
    forwards: dict[int, CallPlace] = {}
    for event in (*trace.main, *trace.others):
        above = CallPlace() if event.parent is None else places[event.parent]
        places[event] = here = _enter(event, above, forwards)
        number = event.args.get("Sequence number")
        if number is not None and here.direction in {"forward", ""}:
            forwards[number] = here  # of several that see this number the last makes its node
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
    if event.name.startswith(_ENGINE):  # stands where the forward operator did
        forward = forwards.get(event.args.get("Sequence number", -1), CallPlace())
        direction = "backward" if forward.path else ""
        return replace(forward, direction=direction, in_step=True, counted=None)
    if _communicates(event):
        return replace(above, scope=RangeScope(COMMUNICATION, COMMUNICATION))
    if above.counted is None and has_formula(event):
        return replace(above, counted=event)
    return above


def _communicates(event: TraceEvent) -> bool:
    return event.name.startswith(_COMMUNICATION)
