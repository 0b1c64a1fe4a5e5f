"""What ``action=dryrun`` prints and how it ends; the roles' processes are stood for."""

import json
from typing import Any

import pytest

from command.actions import dryrun
from command.main import main
from command.outcome import Status
from components.config.recipe import Recipe
from components.dryrun.rank_roles import RoleError, roles_of

Said = pytest.CaptureFixture[str]

GIB = 2**30
WORDS = ["recipe=playbook3b", "cluster=hopper", "action=dryrun"]
CALL = {
    "axis": "data",
    "operation": "all_gather",
    "dtype": "float32",
    "ranks": 4,
    "count": 7,
    "bytes": 4 * GIB,
    "sent_bytes": 3 * GIB,
}


def placeholder(monkeypatch: pytest.MonkeyPatch, weights_bytes: int) -> None:
    """Let every role hold so many bytes and nothing else."""
    categories = ("weights", "gradients", "optimizer", "casts", "activations", "temporary")
    held = dict.fromkeys(categories, 0) | {"weights": weights_bytes}
    peaks = {
        phase: {
            "phase": phase,
            "operator": "aten.mm.default",
            "microbatches_begun": 3,
            "by_category": held,
            "bytes": weights_bytes,
        }
        for phase in ("backward", "update")
    }

    def roles(recipe: Recipe, say: Any) -> Any:
        found = {
            "microbatches": 32,
            "rehearsed_microbatches": 3,
            "peaks": peaks,
            "collectives": [CALL],
            "flops": {"mm": 10**15},
            "seconds": 1.0,
            "host_bytes": GIB,
        }
        return dict.fromkeys(roles_of(recipe), found)

    monkeypatch.setattr(dryrun, "rehearse_roles", roles)


@pytest.mark.parametrize(
    ("gib", "status", "verdict"), [(10, 0, "fits"), (68, 0, "tight"), (90, 1, "does_not_fit")]
)
def test_the_status_is_the_verdict(monkeypatch, capsys, gib, status, verdict):
    placeholder(monkeypatch, gib * GIB)
    assert main([*WORDS, "output=json"]) == status
    tree = json.loads(capsys.readouterr().out)
    assert tree["memory"]["verdict"] == verdict
    assert tree["memory"]["peak_bytes"] > gib * GIB
    assert [role["stands_for_ranks"] for role in tree["roles"]] == [4, 4]
    for role in tree["roles"]:
        assert role["collectives"] == [CALL]
        named = {one["figure"] for one in role["differences"] if one["is_named"]}
        assert "passing_bytes" in named


def test_tables_have_every_category(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    placeholder(monkeypatch, 10 * GIB)
    assert main(WORDS) == 0
    text = capsys.readouterr().out
    for words in ("weights", "temporary", "all_gather", "10.00", "3 of 32 rehearsed"):
        assert words in text


def test_a_role_that_fails_does_not_hold(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    def fails(recipe: Recipe, say: Any) -> Any:
        raise RoleError("rank 4 (last, 14 layers) ended with signal 9, as for want of memory")

    monkeypatch.setattr(dryrun, "rehearse_roles", fails)
    assert main(WORDS) == Status.DOES_NOT_HOLD
    assert "rank 4 (last, 14 layers) ended with signal 9" in capsys.readouterr().err
