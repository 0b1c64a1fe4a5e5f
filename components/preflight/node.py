"""Checks of one node, link measurements with other nodes, and the hub that gathers reports."""

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
from components.preflight.verdict import NodeReport, PreflightVerdict, Rates, judge_nodes
from components.run.event_log import node_name
from components.run.folder import RunFolder
from components.run.provenance import parts_of
from components.terminal import log_line
from components.train.ranks import task_number


def name_among(names: Sequence[str], seen: Mapping[str, str]) -> str:
    """Return this node's name in ``names``: by host name, or else by task number.

    Each node has one task. Tasks are in the order of ``names``.
    """
    own = node_name(seen).partition(".")[0]
    return own if own in names else names[task_number(seen)]


def rules_of(recipe: Recipe) -> Preflight:
    """Return the preflight limits of the recipe's cluster."""
    rules = recipe.cluster.preflight
    if isinstance(rules, str):
        remedy = "leave cluster.preflight as it is"
        raise RecipeError("cluster.preflight", "none: there are no limits to judge by", remedy)
    return rules


def look_here(recipe: Recipe, folder: RunFolder, name: str) -> NodeReport:
    """Run all checks that need no other node."""
    began, rules, cluster = time.monotonic(), rules_of(recipe), recipe.cluster
    findings = (
        devices.check_count(cluster),
        devices.check_memory(cluster, rules, devices.devices_here(cluster)),
        *node_checks.check_places(recipe, rules, folder.path),
        *node_checks.check_copies(folder.path, name, os.environ),
        node_checks.check_packages(folder, parts_of(recipe)),
        node_checks.check_versions(),
        node_checks.check_data(recipe, rules, folder, name),
    )
    # List devices again: once CUDA has started, its count excludes devices that fail.
    here = devices.devices_here(cluster)
    dtype = compute_dtype(recipe.precision.compute, here[0] if here else torch.device("cpu"))
    rate = None
    try:
        rate = devices.slowest_teraflops(here, dtype) if here else None
    except RuntimeError as error:  # any error of a broken device
        log_line(f"no product: {error}")
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
    """Check this node, report to the job's first node, and measure links to other nodes."""
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
        # Make NCCL raise on a timeout instead of ending the process.
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        # Use the CPU on Intel GPUs: if oneCCL takes its ranks from MPI, as on Aurora, it does
        # not support groups of two.
        on_gpu = device_type(recipe.cluster.device) == "cuda"
        device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        rates = devices.measure_links(roster, name, store, device, rules.link_seconds)
        store.set(f"links/{name}", json.dumps(rates))


def look_alone(recipe: Recipe, folder: RunFolder) -> PreflightVerdict:
    """Judge this node alone, without clock and link checks, which need two nodes."""
    name = node_name(os.environ).partition(".")[0]
    report, rules, cluster = look_here(recipe, folder, name), rules_of(recipe), recipe.cluster
    return judge_nodes(
        cluster, rules, [name], {name: report}, {}, needed=1, seconds=report.seconds
    )


def gather_reports(
    store: TCPStore, recipe: Recipe, names: Sequence[str], *, needed: int
) -> PreflightVerdict:
    """Collect reports of ``names``, let good nodes measure links in pairs, and judge all."""
    began, rules = time.monotonic(), rules_of(recipe)
    store.set("names", json.dumps(list(names)))
    answers = _collect(store, "report", names, rules.answer_seconds)
    reports = {name: NodeReport.model_validate_json(text) for name, text in answers.items()}
    roster = [name for name in names if name in reports and not reports[name].bad_findings]
    store.set("roster", json.dumps(roster))
    links: dict[str, Rates] = {}
    if rounds := len(devices.rounds_of_pairs(len(roster))):
        longest = rules.link_seconds * rounds * (rounds + 1) / 2
        measured = _collect(store, "links", roster, longest)
        silent: Rates = {"any other": None}
        links = {
            name: json.loads(measured[name]) if name in measured else silent for name in roster
        }
    elapsed, cluster = time.monotonic() - began, recipe.cluster
    return judge_nodes(cluster, rules, names, reports, links, needed=needed, seconds=elapsed)


def _collect(
    store: TCPStore, kind: str, names: Sequence[str], seconds: float
) -> dict[str, bytes]:
    """Return the answers by node that arrive in the store within ``seconds``."""
    missing, answers = list(names), dict[str, bytes]()
    end = time.monotonic() + seconds
    while missing and time.monotonic() < end:
        arrived = [name for name in missing if store.check([f"{kind}/{name}"])]
        answers |= {name: store.get(f"{kind}/{name}") for name in arrived}
        missing = [name for name in missing if name not in answers]
        time.sleep(0.05)
    return answers


@contextmanager
def serve_store(port: int) -> Iterator[TCPStore]:
    """Serve the store of the reports at ``port``; 0 is a free port. See `gather_reports`."""
    soon = timedelta(seconds=10)  # the store is local and answers at once
    store = TCPStore("0.0.0.0", port, is_master=True, wait_for_workers=False, timeout=soon)
    with node_checks.telling_time() as clock:
        store.set("clock", str(clock))
        yield store
