import torch
import torch.distributed as dist

from components.torch_internals import operators
from components.torch_internals.operators import active_fake_mode, storage_key
from tests.components.torch_internals.seen import overloads_of


def test_an_overload_knows_its_packet_and_its_name() -> None:
    (overload,) = overloads_of(lambda: torch.ones(1).add_(1.0))[-1:]
    assert operators.packet_of(overload) is torch.ops.aten.add_
    assert operators.qualified_name(overload) == "aten.add_"


def test_the_active_fake_mode_is_known_and_its_tensors_have_no_memory() -> None:
    assert active_fake_mode() is None
    with operators.FakeTensorMode() as mode:
        assert active_fake_mode() is mode
        tensor = torch.empty(2**20, 2**20)
        assert (tensor @ tensor).shape == tensor.shape
    assert active_fake_mode() is None
    assert tensor.device.type == "cpu"


def test_views_share_their_storages_key_and_other_tensors_do_not() -> None:
    with operators.FakeTensorMode():
        first, second = torch.empty(4, 4), torch.empty(4, 4)
    assert storage_key(first) == storage_key(first[1:]) == storage_key(first.T)
    assert storage_key(first) != storage_key(second)


def test_leaves_are_found_in_lists_tuples_and_mappings() -> None:
    assert operators.tree_leaves([1, (2, {"key": 3}), 4]) == [1, 2, 3, 4]


def test_collectives_of_a_fake_world_return() -> None:
    dist.init_process_group("fake", store=operators.FakeStore(), rank=5, world_size=4_096)
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (5, 4_096)
        dist.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()
