import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data_prep.stages.duplicates import find_exact

# Few different values, so that many are equal in one half and not in the other.
FILES = st.lists(st.integers(0, 12), min_size=1, max_size=5).flatmap(
    lambda lengths: st.tuples(
        *(arrays(np.uint64, (length, 2), elements=st.integers(0, 3)) for length in lengths)
    )
)


@pytest.mark.parametrize("most_bytes", [1 << 30, 64])
@given(files=FILES)
def test_exactly_the_repeated_hashes_are_found(most_bytes, files):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.npy" for number in range(len(files))]
        for path, hashes in zip(paths, files, strict=True):
            np.save(path, hashes.view(np.uint8))
        repeated = find_exact(paths, most_bytes)
    seen: set[tuple[int, ...]] = set()
    for found, file in zip(repeated, files, strict=True):
        expected = []
        for row, value in enumerate(map(tuple, file.tolist())):
            if value in seen:
                expected.append(row)
            seen.add(value)
        assert found.tolist() == expected


def test_more_files_than_a_process_may_open_are_searched(tmp_path):
    """A mapping holds a file descriptor."""
    paths = [tmp_path / f"{number}.npy" for number in range(70)]
    for path in paths:
        np.save(path, np.zeros((1, 16), np.uint8))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 10, before[1]))
    try:
        repeated = find_exact(paths, 1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [len(rows) for rows in repeated] == [0, *[1] * 69]
