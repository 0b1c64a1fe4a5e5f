"""A node finds itself among those of its job."""

import socket

import pytest

from components.errors import RecipeError
from components.preflight.node import name_among

NAMES = ["x4102c5s2b0n0", "x4102c5s3b0n0", "x4102c5s4b0n0"]
TASK = {"PALS_RANKID": "2", "PALS_LOCAL_RANKID": "0"}


def test_a_node_that_is_listed_is_known_by_its_name_whatever_its_tasks_number() -> None:
    own = socket.gethostname().partition(".")[0]
    assert name_among([own, *NAMES], TASK) == own
    assert name_among(NAMES, TASK | {"SLURMD_NODENAME": "x4102c5s3b0n0.site"}) == NAMES[1]


def test_a_node_that_is_listed_by_another_name_is_known_by_its_tasks_number() -> None:
    assert name_among(NAMES, TASK) == NAMES[2]


def test_a_node_that_neither_name_nor_number_tells_is_refused() -> None:
    with pytest.raises(
        RecipeError, match="RANK: no launcher sets the node's number in the job"
    ):
        name_among(NAMES, {})
