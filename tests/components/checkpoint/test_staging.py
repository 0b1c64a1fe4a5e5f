"""Buffers of the host: what is staged stays as it was, and memory is used again."""

import torch

from components.checkpoint.saving import HostBuffers

CPU = torch.device("cpu")


def test_what_was_staged_does_not_change_with_its_tensor() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    (staged,) = HostBuffers(CPU).copy_to_host([tensor])
    tensor.fill_(-1)
    assert torch.equal(staged, torch.arange(6.0).reshape(2, 3))


def test_two_checkpoints_of_one_save_have_memory_of_their_own() -> None:
    buffers, tensor = HostBuffers(CPU), torch.ones(4)
    (full,) = buffers.copy_to_host([tensor])
    (weights,) = buffers.copy_to_host([tensor])
    assert full.data_ptr() != weights.data_ptr()


def test_a_later_save_uses_the_memory_of_the_one_before() -> None:
    buffers, tensors = HostBuffers(CPU), [torch.ones(4), torch.ones(4, dtype=torch.bfloat16)]
    before = {one.data_ptr() for one in buffers.copy_to_host(tensors)}
    for number in (2, 3):  # torch's own stager could not be asked again
        buffers.release_buffers()
        staged = buffers.copy_to_host([one.fill_(number) for one in tensors])
        assert {one.data_ptr() for one in staged} == before
        assert all(bool((one == number).all()) for one in staged)
