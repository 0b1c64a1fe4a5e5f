"""``results.json`` is strict JSON."""

import json
import math

from components.json_file import replace_nonfinite


def test_numbers_that_are_not_finite_are_null_and_their_keys_are_listed() -> None:
    found = replace_nonfinite({
        "loss": math.inf,
        "steps": 3,
        "held_out": {"final": math.nan, "first": 1.5},
        "rates": [1.0, -math.inf],
    })
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "loss": None,
        "steps": 3,
        "held_out": {"final": None, "first": 1.5},
        "rates": [1.0, None],
        "not_finite": ["loss", "held_out.final", "rates.1"],
    }
