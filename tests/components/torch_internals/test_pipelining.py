"""Receive buffers of a pipeline stage, observed on real ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B

from components.torch_internals.distributed import NOWHERE, LeanStage

MICROBATCHES = 4
Held = tuple[set[int], set[int]]  # microbatches with memory for activations, for gradients


def memory_over_a_step() -> list[tuple[int, Held, Held]]:
    """List microbatches in the order of backward passes, with the buffers before and after."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = stage_of(rank, ranks)
    schedule = Schedule1F1B(
        stage, MICROBATCHES, loss_fn=lambda loss, _: loss.sum(), scale_grads=False
    )
    found = watch(stage)
    given = (torch.ones(MICROBATCHES, 8),) if rank == 0 else ()
    for _ in range(2):  # torch before 2.13 first allocates all buffers
        found.clear()
        schedule.step(*given, target=torch.zeros(MICROBATCHES, 8), return_outputs=False)
    return found


def stage_of(rank: int, ranks: int) -> LeanStage:
    one = torch.empty(1, 8, device="meta", requires_grad=True)
    return LeanStage(
        nn.Linear(8, 8),
        rank,
        ranks,
        torch.device("cpu"),
        input_args=(one.detach() if rank == 0 else one,),
        output_args=(one,),
    )


def watch(stage: LeanStage) -> list[tuple[int, Held, Held]]:
    found: list[tuple[int, Held, Held]] = []
    patched: Any = stage
    backward = patched.backward_one_chunk

    def watched(number: int, *args: Any, **kwargs: Any) -> None:
        before = held(stage)
        backward(number, *args, **kwargs)
        found.append((number, before, held(stage)))

    patched.backward_one_chunk = watched
    return found


def held(stage: LeanStage) -> Held:
    infos: tuple[Any, Any] = stage.args_recv_info, stage.grad_recv_info
    activations, gradients = (
        {number for number, one in received.items() if any(map(has_memory, one))}
        for received in infos
    )
    return activations, gradients


def has_memory(info: Any) -> bool:
    """Return whether a receive buffer has memory; torch 2.15 frees it itself."""
    buffer = getattr(info, "buffer", None)
    return buffer is not None and buffer.device != NOWHERE


def test_receive_buffers_are_freed_after_the_backward_pass(two_ranks):
    first, last = two_ranks(memory_over_a_step)
    for steps in (first, last):
        assert [number for number, *_ in steps] == list(range(MICROBATCHES))
        for number, before, after in steps:
            assert all(len(numbers) <= 2 for numbers in before)
            assert all(number not in numbers for numbers in after)
        assert steps[-1][2] == (set(), set())
