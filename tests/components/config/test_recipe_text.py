"""The recipe as YAML, read back by PyYAML as the independent reference."""

import yaml
from hypothesis import given
from hypothesis import strategies as st

from components.config.recipe_text import recipe_lines

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    # Control, quote, escape, next-line, byte-order and astral characters: YAML's hard cases.
    | st.text("a 1:#-'\"\\\n\t\x07\x85\u2028\ufeffé語😀\U000e0001", max_size=8)
    | st.sampled_from([
        "yes",
        "No",
        "null",
        "1e5",
        "0x1f",
        "2026-01-02",
        "a: b",
        "- x",
        "~",
        "y",
    ])
)
_KEYS = st.text("abcyno_.019", min_size=1, max_size=6) | st.sampled_from(["on", "null", "x y"])
_TREES = st.dictionaries(
    _KEYS,
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)


def _text(tree):
    return "\n".join(line.text for line in recipe_lines(tree, frozenset()))


@given(_TREES)
def test_written_yaml_is_read_back_equal(tree):
    assert (yaml.safe_load(_text(tree)) or {}) == tree


def test_written_yaml_has_the_layout_of_a_recipe():
    tree = {"name": "x", "budget": {"total_tokens": 500_000}, "lr": 3e-05, "betas": [0.9, 0.95]}
    assert _text(tree).split("\n") == [
        "name: x", "budget:", "  total_tokens: 500_000", "lr: 3.0e-05", "betas: [0.9, 0.95]",
    ]  # fmt: skip


def test_text_in_other_languages_stays_readable():
    assert _text({"description": "Größer 😀: besser?"}) == 'description: "Größer 😀: besser?"'


def test_marks_the_lines_of_the_keys_that_differ():
    tree = {"model": {"dim": 128, "rope": {"base": 1.0}}, "name": "x"}
    lines = recipe_lines(tree, frozenset({"model.rope.base"}))
    assert [line.text for line in lines if line.differs] == ["  rope: {base: 1.0}"]
