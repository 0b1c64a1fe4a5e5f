"""What the short measurements count."""

from components.preflight.devices import bus_bandwidth


def test_bus_bandwidth_is_that_of_nccls_tests() -> None:
    # doc/PERFORMANCE.md: all-reduce S/t 2(n-1)/n, all-gather S/t (n-1)/n
    assert bus_bandwidth("all_reduce", 8, 1_000, 2.0) == 1_000 / 2 * 2 * 7 / 8
    assert bus_bandwidth("all_gather", 4, 1_000, 2.0) == 1_000 / 2 * 3 / 4
