"""Packages for a GPU machine have the versions of the locks."""

import re

from command.arguments import ROOT

PINNED = re.compile(r"^([\w.-]+==[^\s\\]+)", re.MULTILINE)
PEERS = {"docstring-parser", "torchdata", "torchtitan", "tyro"}  # no lock has these


def pinned(name: str) -> set[str]:
    return set(PINNED.findall((ROOT / "requirements" / name).read_text("utf-8")))


def test_packages_have_the_versions_of_the_locks() -> None:
    locked = pinned("run.lock") | pinned("dev.lock") | pinned("fp8.lock")
    assert {text.partition("==")[0] for text in pinned("gpu.txt") - locked} == PEERS
