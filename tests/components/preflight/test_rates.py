"""What the short measurements count, and what they import."""

import subprocess
import sys

from components.profiling.rates import bus_bandwidth


def test_bus_bandwidth_is_that_of_nccls_tests() -> None:
    # doc/PERFORMANCE.md: all-reduce S/t 2(n-1)/n, all-gather S/t (n-1)/n
    assert bus_bandwidth("all_reduce", 8, 1_000, 2.0) == 1_000 / 2 * 2 * 7 / 8
    assert bus_bandwidth("all_gather", 4, 1_000, 2.0) == 1_000 / 2 * 3 / 4


def test_a_preflight_does_not_load_torchs_compiler() -> None:
    # its import takes seconds on every node
    code = (
        "import sys, components.preflight.node\n"
        "sys.exit(bool({'torch._dynamo', 'torch._inductor', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
