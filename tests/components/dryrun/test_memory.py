"""The account of memory against torch's own tracker, and what it calls things."""

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from components.dryrun.trackers import MemoryLedger

WIDTH, ROWS = 64, 512


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def test_one_pass_holds_what_torchs_tracker_counts() -> None:
    with FakeTensorMode():
        ours, theirs = model(), model()
        rows = torch.empty(ROWS, WIDTH)
        ledger = MemoryLedger(list(ours.parameters()))
        with ledger:
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


def test_each_storage_is_called_by_what_it_is_for() -> None:
    with FakeTensorMode():
        linear = nn.Linear(WIDTH, WIDTH, bias=False)
        ledger = MemoryLedger(list(linear.parameters()))
        with ledger:
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
    # The input and what it was cast to, and the result in two bytes.
    assert after_forward["activations"] == ROWS * WIDTH * (4 + 2 + 2)
    assert after_backward["gradients"] == weight
    assert after_backward["casts"] == 0


def test_a_second_step_has_its_own_peak() -> None:
    with FakeTensorMode():
        ledger = MemoryLedger([])
        with ledger:
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


def test_a_storage_that_is_emptied_counts_for_nothing_until_it_is_filled_again() -> None:
    """As FSDP does with gathered weights that autograd keeps."""
    with FakeTensorMode():
        ledger = MemoryLedger([])
        found = []
        with ledger:
            ledger.phase = "forward"
            gathered = torch.empty(1_000, dtype=torch.int8)
            kept = gathered.view(10, 100)
            for size in (0, 1_000, 0):
                gathered.untyped_storage().resize_(size)
                found.append(ledger.held["activations"])
            del gathered, kept
            found.append(ledger.held["activations"])
            ledger.record_peak()
        torch.empty(4).untyped_storage().resize_(0)  # nobody watches any more
    assert found == [0, 1_000, 0, 0]
    assert ledger.peaks["forward"].total_bytes == 1_000
