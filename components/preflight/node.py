"""All that one node says of itself, and its part in what takes two."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from components.config.schema.cluster import Preflight
from components.config.schema.recipe import Recipe, read_recipe
from components.distributed.devices import compute_dtype
from components.errors import RecipeError
from components.preflight.contents import check_data, check_packages, check_versions
from components.preflight.devices import (
    check_count,
    check_memory,
    devices_here,
    slowest_teraflops,
)
from components.preflight.judge import judge
from components.preflight.links import link_device, measure_links
from components.preflight.node_checks import ask_time, check_copies, check_network, check_places
from components.preflight.verdict import ClockOffset, NodeFinding, NodeReport, PreflightVerdict
from components.run.event_log import node_name
from components.run.folder import RunFolder
from components.run.provenance import parts_of
from components.terminal import say
from components.train.ranks import task_number


def short_name(seen: Mapping[str, str]) -> str:
    """Return this node's name without its domain."""
    return node_name(seen).partition(".")[0]


def name_among(names: Sequence[str], seen: Mapping[str, str]) -> str:
    """Find this node among the job's: by its name or, if it has another, by its task's number.

    Each node has one task, started in the order of ``names``.

    Raises:
        RecipeError: it has another name, and no launcher says which task this is.
    """
    own = short_name(seen)
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
    began, rules = time.monotonic(), rules_of(recipe)
    findings = list(_findings(recipe, rules, folder, name))
    devices = devices_here(recipe.cluster)
    first = devices[0] if devices else torch.device("cpu")
    dtype = compute_dtype(recipe.precision.compute, first)
    rate = None
    try:
        rate = slowest_teraflops(devices, dtype) if devices else None
    except RuntimeError as error:  # whatever a broken device raises
        say(f"no product: {error}")
    return NodeReport(
        node=name,
        findings=tuple(findings),
        cores=len(os.sched_getaffinity(0)),
        product_teraflops=rate,
        dtype=str(dtype).removeprefix("torch."),
        clock=None,
        seconds=time.monotonic() - began,
    )


def _findings(
    recipe: Recipe, rules: Preflight, folder: RunFolder, name: str
) -> Iterator[NodeFinding]:
    yield check_count(recipe.cluster)
    yield check_memory(recipe.cluster, rules, devices_here(recipe.cluster))
    yield from check_places(recipe, rules, folder.path)
    yield from check_copies(folder.path, name, os.environ)
    yield check_packages(folder, parts_of(recipe))
    yield check_versions()
    yield check_data(recipe, rules, folder, name)
    yield check_network(recipe, folder, os.environ)


def take_part(path: Path, seen: Mapping[str, str]) -> None:
    """Look at this node, tell the job's first one, and meet the nodes that it names."""
    folder = RunFolder(path)
    recipe = read_recipe(folder.recipe)
    rules, host, port = rules_of(recipe), seen["MASTER_ADDR"], int(seen["MASTER_PORT"])
    store = TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=rules.longest_seconds)
    )
    name = name_among(json.loads(store.get("names")), seen)
    clock: ClockOffset = ask_time(host, int(store.get("clock")))
    report = look_here(recipe, folder, name).model_copy(update={"clock": clock})
    store.set(f"report/{name}", report.model_dump_json())
    roster = json.loads(store.get("roster"))
    if name in roster:
        # NCCL would end the process where a pair is too slow; so it raises instead.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        device = link_device(recipe.cluster)
        found = measure_links(roster, name, store, device, rules.link_seconds)
        store.set(f"links/{name}", json.dumps(found))


def look_alone(recipe: Recipe, folder: RunFolder) -> PreflightVerdict:
    """Judge this node by itself: no clock and no link, which take two."""
    name = short_name(os.environ)
    report = look_here(recipe, folder, name)
    rules = rules_of(recipe)
    return judge(
        recipe.cluster, rules, [name], {name: report}, {}, needed=1, seconds=report.seconds
    )
