"""The parts of a step, and to which of them each call in a trace belongs.

An operator belongs to the range around it; a matrix product within a layer is one of the
``products``, whichever module has it. The operators of a backward pass belong where the
forward operator does that autograd differentiates: both have its sequence number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from components.profiling.counts import has_formula
from components.profiling.ranges import PREFIX
from components.profiling.trace import Event, Trace

ATTENTION, PRODUCTS = "attention", "products"
EXPERT_PRODUCTS, ROUTING = "experts: products", "experts: routing"
POINTWISE, REST, LOSS = "norms and activations", "rest of the model", "head and loss"
GRADIENTS, OPTIMIZER = "gradients", "optimizer"
COMMUNICATION, DATA, HOST = "communication", "data", "host"
PARTS = (
    *(ATTENTION, PRODUCTS, EXPERT_PRODUCTS, ROUTING, POINTWISE, REST, LOSS),
    *(GRADIENTS, OPTIMIZER, COMMUNICATION, DATA, HOST),
)
Direction = Literal["forward", "backward", "recomputed", ""]


class Scope(NamedTuple):
    """To which part the products inside a range belong, and to which all else."""

    products: str
    others: str


# What is in no range of the model and not the update: sums, norm and clipping of gradients,
# scaling of losses, figures that ranks agree on.
_OUTSIDE = Scope(GRADIENTS, GRADIENTS)
_SCOPES: Mapping[str, Scope] = {
    "core": Scope(ATTENTION, ATTENTION),
    "attention": Scope(PRODUCTS, ATTENTION),  # heads, rotation
    "experts": Scope(EXPERT_PRODUCTS, ROUTING),
    "mlp": Scope(PRODUCTS, POINTWISE),
    "norm": Scope(POINTWISE, POINTWISE),
    "model": Scope(PRODUCTS, REST),  # embedding, residual sums
    "loss": Scope(LOSS, LOSS),
}
_ENGINE = "autograd::engine::evaluate_function"
_COMMUNICATION = ("c10d::", "_c10d_functional", "fsdp::", "record_param_comms", "nccl:")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands; ``counted`` is the operator around it whose FLOPs are known."""

    scope: Scope = _OUTSIDE
    path: str = ""
    direction: Direction = ""
    in_step: bool = False
    counted: Event | None = None

    @property
    def part(self) -> str:
        return self.scope.others if self.counted is None else self.scope.products


def is_operator(event: Event) -> bool:
    """Whether a call's own time is an operator's: else it is Python's, or the engine's."""
    named = "::" in event.name and not event.name.startswith("autograd::")
    return event.category == "cpu_op" and (named or _communicates(event))


def places_of(trace: Trace) -> dict[Event, Place]:
    """Find the place of every call on the host, the forward passes first."""
    places: dict[Event, Place] = {}
    forwards: dict[int, Place] = {}
    for event in (*trace.main, *trace.others):
        above = Place() if event.parent is None else places[event.parent]
        places[event] = here = _enter(event, above, forwards)
        number = event.args.get("Sequence number")
        if number is not None and here.direction in {"forward", ""}:
            forwards[number] = here  # of several that see this number the last makes its node
    return places


def _enter(event: Event, above: Place, forwards: Mapping[int, Place]) -> Place:
    if event.is_step:
        return replace(above, in_step=True)
    if event.name.startswith("enumerate(DataLoader)"):
        return Place(scope=Scope(DATA, DATA), in_step=True)
    if event.name.startswith("Optimizer.step#"):
        return replace(above, scope=Scope(OPTIMIZER, OPTIMIZER))
    if event.name.startswith(PREFIX):
        kind, _, path = event.name.removeprefix(PREFIX).partition(" ")
        again = above.direction in {"backward", "recomputed"}
        direction: Direction = "recomputed" if again else "forward"
        return replace(above, scope=_SCOPES[kind], path=path, direction=direction)
    if event.name.startswith(_ENGINE):
        return _differentiate(event, forwards)
    if _communicates(event):
        return replace(above, scope=Scope(COMMUNICATION, COMMUNICATION))
    if above.counted is None and has_formula(event):
        return replace(above, counted=event)
    return above


def _differentiate(event: Event, forwards: Mapping[int, Place]) -> Place:
    """Stand where the forward operator did; a thread of autograd's own is in the step, too."""
    forward = forwards.get(event.args.get("Sequence number", -1), Place())
    direction: Direction = "backward" if forward.path else ""
    return replace(forward, direction=direction, in_step=True, counted=None)


def _communicates(event: Event) -> bool:
    return event.name.startswith(_COMMUNICATION)
