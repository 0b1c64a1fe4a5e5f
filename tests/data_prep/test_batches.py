from hypothesis import given
from hypothesis import strategies as st

from components.data.token_file import iter_batches


@given(st.lists(st.text("a", max_size=6)), st.integers(1, 12))
def test_batches_are_the_items_in_order_and_each_is_closed_at_once(items, size):
    found = list(iter_batches(iter(items), size))
    assert [item for batch in found for item in batch] == items
    sizes = [[len(item) + 1 for item in batch] for batch in found]
    assert all(sum(each) >= size for each in sizes[:-1])
    assert all(sum(each[:-1]) < size for each in sizes)
    assert all(sizes)
