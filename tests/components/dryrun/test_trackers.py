"""Memory by category against torch's tracker, and collectives by axis."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from components.distributed.collectives import all_gather, reduce_scatter
from components.distributed.mesh import build_mesh
from components.dryrun.fake_world import fake_world
from components.dryrun.trackers import (
    CollectiveKind,
    CollectiveLedger,
    MemoryLedger,
    axes_of_groups,
)
from tests.components.layouts import mesh_layout, parallelism

WIDTH, ROWS = 64, 512


def test_memory_of_a_pass_equals_torchs_tracker() -> None:
    with FakeTensorMode():
        ours, theirs = (
            nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))
            for _ in range(2)
        )
        rows = torch.empty(ROWS, WIDTH)
        with MemoryLedger(list(ours.parameters())) as ledger:
            ledger.set_category("weights", ours.parameters())
            ledger.phase = "forward"
            ours(rows).sum().backward()
            ledger.record_peak()
        tracker = MemTracker()
        tracker.track_external(theirs)
        with tracker:
            theirs(rows).sum().backward()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    highest = max(peak.total_bytes for peak in ledger.peaks.values())
    assert highest == peak["Total"] > ROWS * WIDTH * 4


def test_each_storage_has_the_category_of_its_use() -> None:
    with FakeTensorMode():
        linear = nn.Linear(WIDTH, WIDTH, bias=False)
        with MemoryLedger(list(linear.parameters())) as ledger:
            ledger.set_category("weights", linear.parameters())
            ledger.phase = "forward"
            with torch.autocast("cpu", torch.bfloat16):
                kept = linear(torch.empty(ROWS, WIDTH, requires_grad=True))
            after_forward = dict(ledger.held)
            kept.sum().backward()
            ledger.phase = "reduction"
            kept = kept.detach() * 2
            after_backward = dict(ledger.held)
            del kept
    weight = WIDTH * WIDTH * 4
    assert after_forward["weights"] == after_backward["weights"] == weight
    assert after_forward["casts"] == weight / 2
    # The input, its cast, and the result in two bytes.
    assert after_forward["activations"] == ROWS * WIDTH * (4 + 2 + 2)
    assert after_backward["gradients"] == weight
    assert after_backward["casts"] == 0


def test_a_second_step_has_its_own_peak() -> None:
    with FakeTensorMode(), MemoryLedger([]) as ledger:
        ledger.phase = "forward"
        large = torch.empty(1_000, dtype=torch.int8)
        del large
        ledger.start_step()
        ledger.phase = "update"
        small = torch.empty(10, dtype=torch.int8)
        ledger.record_peak()
    ((phase, highest),) = ledger.peaks.items()
    assert phase == "update"
    assert highest.total_bytes == small.numel()
    assert "empty" in highest.operator


def test_an_emptied_storage_counts_only_when_refilled() -> None:
    """FSDP does this with gathered weights that autograd saves."""
    with FakeTensorMode():
        found = []
        with MemoryLedger([]) as ledger:
            ledger.phase = "forward"
            gathered = torch.empty(1_000, dtype=torch.int8)
            kept = gathered.view(10, 100)
            for size in (0, 1_000, 0):
                gathered.untyped_storage().resize_(size)
                found.append(ledger.held["activations"])
            del gathered, kept
            found.append(ledger.held["activations"])
            ledger.record_peak()
        torch.empty(4).untyped_storage().resize_(0)  # after the ledger has ended
    assert found == [0, 1_000, 0, 0]
    assert ledger.peaks["forward"].total_bytes == 1_000


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ({"data_shard": 8}, "data 8"),
        (
            {"data_replicate": 2, "expert": 3, "tensor": 4},
            "data 2, data x expert 6, expert 3, tensor 4, world 24",
        ),
        (
            {"data_shard": 2, "context": 2, "pipeline": 3},
            "context 2, data 2, data x context 4, pipeline 3, world 12",
        ),
    ],
)
def test_collective_groups_are_named_by_their_axes(sizes, axes):
    layout = mesh_layout(sizes)
    with fake_world(0, layout.num_ranks):
        found = axes_of_groups(build_mesh("cpu", layout))
    assert ", ".join(sorted(f"{axis} {ranks}" for axis, ranks in set(found.values()))) == axes


def test_message_sizes_are_the_bytes_of_the_whole_tensor() -> None:
    with fake_world(0, 8):
        mesh = build_mesh("cpu", parallelism(data=4, tensor=2))
        group = mesh.get_axis("data_shard").get_group()
        part, whole = torch.zeros(5), torch.zeros(20)
        with CollectiveLedger(mesh) as ledger:
            all_gather(whole, part, group=group)
            reduce_scatter(part, whole, group=group)
            dist.all_reduce(part, group=group)
            dist.send(part, 2, group=group)
    sizes = {"all_gather": 80, "reduce_scatter": 80, "all_reduce": 20, "send": 20}
    kinds = {name: CollectiveKind("data", name, "float32", 4) for name in sizes}
    assert dict(ledger.bytes) == {kinds[name]: size for name, size in sizes.items()}
    assert set(ledger.calls.values()) == {1}
