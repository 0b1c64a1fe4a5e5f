"""Gather what the nodes of a job say: at the first one, by torch's store."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from components.config.schema.recipe import Recipe
from components.preflight.judge import judge
from components.preflight.links import Rates, rounds_of_pairs
from components.preflight.node import rules_of
from components.preflight.node_checks import telling_time
from components.preflight.verdict import NodeReport, PreflightVerdict

_LOOK_SECONDS = 0.05
_STORE_SECONDS = 10.0  # this process keeps the store: it answers at once


class Hub:
    """Where nodes report; it lives as long as `hub` does."""

    def __init__(self, *, store: TCPStore) -> None:
        self._store = store
        self.port = store.port

    def gather(self, recipe: Recipe, names: Sequence[str], *, needed: int) -> PreflightVerdict:
        """Wait for the nodes ``names``, let the good ones meet in pairs, and judge all."""
        began, rules = time.monotonic(), rules_of(recipe)
        self._store.set("names", json.dumps(list(names)))
        said = self._collect("report", names, rules.answer_seconds)
        reports = {name: NodeReport.model_validate_json(text) for name, text in said.items()}
        roster = [name for name in names if name in reports and not reports[name].bad]
        self._store.set("roster", json.dumps(roster))
        links: dict[str, Rates] = {}
        if rounds := len(rounds_of_pairs(len(roster))):
            longest = rules.link_seconds * rounds * (rounds + 1) / 2
            met = self._collect("links", roster, longest)
            silent: Rates = {"any other": None}
            links = {name: json.loads(met[name]) if name in met else silent for name in roster}
        seconds = time.monotonic() - began
        return judge(
            recipe.cluster, rules, names, reports, links, needed=needed, seconds=seconds
        )

    def _collect(self, kind: str, names: Sequence[str], seconds: float) -> dict[str, bytes]:
        """Read what each name has left, or what is there when the time is over."""
        missing, found = list(names), dict[str, bytes]()
        end = time.monotonic() + seconds
        while missing and time.monotonic() < end:
            there = [name for name in missing if self._store.check([f"{kind}/{name}"])]
            found |= {name: self._store.get(f"{kind}/{name}") for name in there}
            missing = [name for name in missing if name not in found]
            time.sleep(_LOOK_SECONDS)
        return found


@contextmanager
def hub(port: int) -> Iterator[Hub]:
    """Listen at ``port`` of this node, 0 for any that is free."""
    store = TCPStore(
        "0.0.0.0",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=_STORE_SECONDS),
    )
    with telling_time() as clock:
        store.set("clock", str(clock))
        yield Hub(store=store)
