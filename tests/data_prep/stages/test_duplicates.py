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
def test_every_hash_that_was_seen_before_is_found_and_no_other(most_bytes, files):
    seen: set[tuple[int, ...]] = set()
    for found, file in zip(find_exact(files, most_bytes), files, strict=True):
        expected = []
        for row, value in enumerate(map(tuple, file.tolist())):
            if value in seen:
                expected.append(row)
            seen.add(value)
        assert found.tolist() == expected
