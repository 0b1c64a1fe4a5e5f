"""A world of one process, and ranks for those tests that need several."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from tests.components.distributed.layout_cases import mesh_of_degrees
from tests.components.distributed.ranks import Ranks


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    mesh_of_degrees.cache_clear()


@pytest.fixture(scope="session")
def ranks(four_ranks: Ranks) -> Ranks:
    return four_ranks
