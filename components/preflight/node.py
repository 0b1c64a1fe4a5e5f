"""What one node says of itself, its part in what takes two, and the hub that gathers it all."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Preflight
from components.distributed.devices import compute_dtype, device_type
from components.errors import RecipeError
from components.preflight import devices, node_checks
from components.preflight.verdict import NodeReport, PreflightVerdict, Rates, judge
from components.run.event_log import node_name
from components.run.folder import RunFolder
from components.run.provenance import parts_of
from components.terminal import say
from components.train.ranks import task_number


def name_among(names: Sequence[str], seen: Mapping[str, str]) -> str:
    """Find this node among the job's: by its name or, if it has another, by its task's number.

    Each node has one task, started in the order of ``names``.

    Raises:
        RecipeError: it has another name, and no launcher says which task this is.
    """
    own = node_name(seen).partition(".")[0]
    return own if own in names else names[task_number(seen)]


def rules_of(recipe: Recipe) -> Preflight:
    """Return the limits of the recipe's cluster.

    Raises:
        RecipeError: it asks for no preflight.
    """
    rules = recipe.cluster.preflight
    if isinstance(rules, str):
        remedy = "leave cluster.preflight as it is"
        raise RecipeError("cluster.preflight", "none: there are no limits to judge by", remedy)
    return rules


def look_here(recipe: Recipe, folder: RunFolder, name: str) -> NodeReport:
    """Make every check that this node can make alone."""
    began, rules, cluster = time.monotonic(), rules_of(recipe), recipe.cluster
    findings = (
        devices.check_count(cluster),
        devices.check_memory(cluster, rules, devices.devices_here(cluster)),
        *node_checks.check_places(recipe, rules, folder.path),
        *node_checks.check_copies(folder.path, name, os.environ),
        node_checks.check_packages(folder, parts_of(recipe)),
        node_checks.check_versions(),
        node_checks.check_data(recipe, rules, folder, name),
        node_checks.check_network(recipe, folder, os.environ),
    )
    # Asked again: once CUDA has started, its count leaves out what does not answer.
    here = devices.devices_here(cluster)
    dtype = compute_dtype(recipe.precision.compute, here[0] if here else torch.device("cpu"))
    rate = None
    try:
        rate = devices.slowest_teraflops(here, dtype) if here else None
    except RuntimeError as error:  # whatever a broken device raises
        say(f"no product: {error}")
    return NodeReport(
        node=name,
        findings=findings,
        cores=len(os.sched_getaffinity(0)),
        product_teraflops=rate,
        dtype=str(dtype).removeprefix("torch."),
        clock=None,
        seconds=time.monotonic() - began,
    )


def take_part(path: Path, seen: Mapping[str, str]) -> None:
    """Look at this node, tell the job's first one, and meet the nodes that it names."""
    folder = RunFolder(path)
    recipe = read_recipe(folder.recipe)
    rules, host, port = rules_of(recipe), seen["MASTER_ADDR"], int(seen["MASTER_PORT"])
    longest = timedelta(seconds=rules.longest_seconds)
    store = TCPStore(host, port, is_master=False, timeout=longest)
    name = name_among(json.loads(store.get("names")), seen)
    clock = node_checks.ask_time(host, int(store.get("clock")))
    report = look_here(recipe, folder, name).model_copy(update={"clock": clock})
    store.set(f"report/{name}", report.model_dump_json())
    roster = json.loads(store.get("roster"))
    if name in roster:
        # NCCL would end the process where a pair is too slow; so it raises instead.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        # Not on Intel's GPUs: oneCCL that takes its ranks from MPI, as on Aurora, knows of no
        # groups of two.
        on_gpu = device_type(recipe.cluster.device) == "cuda"
        device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        found = devices.measure_links(roster, name, store, device, rules.link_seconds)
        store.set(f"links/{name}", json.dumps(found))


def look_alone(recipe: Recipe, folder: RunFolder) -> PreflightVerdict:
    """Judge this node by itself: no clock and no link, which take two."""
    name = node_name(os.environ).partition(".")[0]
    report, rules, cluster = look_here(recipe, folder, name), rules_of(recipe), recipe.cluster
    return judge(cluster, rules, [name], {name: report}, {}, needed=1, seconds=report.seconds)


class Hub:
    """Where nodes report; it lives as long as `hub` does."""

    def __init__(self, *, store: TCPStore) -> None:
        self._store, self.port = store, store.port

    def gather(self, recipe: Recipe, names: Sequence[str], *, needed: int) -> PreflightVerdict:
        """Wait for the nodes ``names``, let the good ones meet in pairs, and judge all."""
        began, rules = time.monotonic(), rules_of(recipe)
        self._store.set("names", json.dumps(list(names)))
        said = self._collect("report", names, rules.answer_seconds)
        reports = {name: NodeReport.model_validate_json(text) for name, text in said.items()}
        roster = [name for name in names if name in reports and not reports[name].bad]
        self._store.set("roster", json.dumps(roster))
        links: dict[str, Rates] = {}
        if rounds := len(devices.rounds_of_pairs(len(roster))):
            longest = rules.link_seconds * rounds * (rounds + 1) / 2
            met = self._collect("links", roster, longest)
            silent: Rates = {"any other": None}
            links = {name: json.loads(met[name]) if name in met else silent for name in roster}
        took, cluster = time.monotonic() - began, recipe.cluster
        return judge(cluster, rules, names, reports, links, needed=needed, seconds=took)

    def _collect(self, kind: str, names: Sequence[str], seconds: float) -> dict[str, bytes]:
        """Read what each name has left, or what is there when the time is over."""
        missing, found = list(names), dict[str, bytes]()
        end = time.monotonic() + seconds
        while missing and time.monotonic() < end:
            there = [name for name in missing if self._store.check([f"{kind}/{name}"])]
            found |= {name: self._store.get(f"{kind}/{name}") for name in there}
            missing = [name for name in missing if name not in found]
            time.sleep(0.05)
        return found


@contextmanager
def hub(port: int) -> Iterator[Hub]:
    """Listen at ``port`` of this node, 0 for any that is free."""
    soon = timedelta(seconds=10)  # this process keeps the store: it answers at once
    store = TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False, timeout=soon)
    with node_checks.telling_time() as clock:
        store.set("clock", str(clock))
        yield Hub(store=store)
