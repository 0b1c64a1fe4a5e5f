"""Print the status of runs as tables or JSON."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from cluster.clients import scheduler_for
from cluster.scheduler import Scheduler, SchedulerError
from cluster.scheduler_command import cached_answers
from cluster.script import job_name
from cluster.status import RunStatus, status_of
from command.continuation import change_text
from command.outcome import print_result
from command.run_tree.nodes import (
    DONE,
    QUEUED,
    WAITING,
    TreeNode,
    is_left,
    logs_of,
    nodes_of,
    queued_jobs,
    root_of,
    state_of,
)
from components.command_line import command_line
from components.config.check import read_recipe
from components.terminal import create_console


def print_run(folder: Path, output: str) -> None:
    """Print the status of a run, its jobs and its tree, as tables or one JSON object."""
    with cached_answers():
        status = status_of(folder, _scheduler(folder))
        tree = _tree(folder)
        if is_left(folder):
            again = command_line(f"resume={folder}")
            status = replace(status, next=f"nodes without a job remain; resume: {again}")
    known = status.jobs or status.chain is not None
    tables = [_runs([status]), _events_table(status), *([_jobs(status)] if known else [])]
    if tree:
        tables.append(_nodes(tree))
    answer = status.as_json() | ({"children": tree} if tree else {})
    print_result(output, answer, lambda: _print(*tables))


def _tree(path: Path) -> dict[str, dict[str, Any]]:
    """Return the state of each node of a run's tree, by name."""
    recipe = read_recipe(path / "recipe.json")
    if not recipe.children:
        return {}
    nodes: dict[str, dict[str, Any]] = {}
    for node in nodes_of(root_of(path)):
        state, why = _node_state(node)
        child = node.child
        nodes[node.name] = {
            "kind": child.node_kind,
            "of": child.of,
            "at_tokens": child.at_tokens,
            "every_tokens": child.every_tokens,
            "state": state,
            "job": job_name(recipe, node.name),
            "why": why,
        }
    return nodes


def _node_state(node: TreeNode) -> tuple[str, str]:
    """Return the state of a node as a word, and the reason, if there is one."""
    state, is_run = state_of(node), node.child.node_kind == "run"
    if state == QUEUED and is_run:
        run = status_of(node.folder_path, _scheduler(node.folder_path))
        return run.state, run.why
    if is_run or state in {DONE, WAITING} or _scheduler(node.root) is None:
        return state, ""
    try:
        jobs = queued_jobs(node)
    except SchedulerError as error:
        return state, str(error)
    if jobs or state != QUEUED or node.is_done:
        return (QUEUED, f"job {jobs[0].job} {jobs[0].state}") if jobs else (state_of(node), "")
    again = command_line(f"resume={node.root}")
    return "lost", f"the job ended before the node; log: {logs_of(node)}; resume: {again}"


def _nodes(tree: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of a tree, each node below its parent."""
    table = Table("node", "", "after tokens", "state", "job", "", box=None)

    def add_node(parent: str | None, depth: int) -> None:
        for name, node in tree.items():
            if node["of"] == parent:
                at, every = node["at_tokens"], node["every_tokens"]
                when = f"{at:,}" if every is None else f"every {every:,}"
                cells = (node["kind"], when, node["state"], node["job"], node["why"])
                table.add_row(f"{'   ' * depth}└─ {name}", *cells)
                add_node(name, depth + 1)

    add_node(None, 0)
    return table


def print_runs(folders: Sequence[Path], output: str) -> None:
    """Print one row per run folder, or one JSON object."""
    with cached_answers():
        statuses = [status_of(folder, _scheduler(folder)) for folder in folders]
    tree = {"runs": [status.as_json() for status in statuses]}
    print_result(output, tree, lambda: _print(_runs(statuses)))


def _print(*tables: Table) -> None:
    out = create_console(width=160)
    for table in tables:
        out.print(table)


def _scheduler(folder: Path) -> Scheduler | None:
    """Return the scheduler of the run's cluster, if its commands exist on this machine."""
    cluster = read_recipe(folder / "recipe.json").cluster
    if cluster.scheduler == "none":
        return None
    scheduler = scheduler_for(cluster)
    return scheduler if shutil.which(scheduler.program) else None


def _runs(statuses: Sequence[RunStatus]) -> Table:
    parents = {Path(status.run).parent for status in statuses}
    together = len(statuses) > 1 and len(parents) == 1
    where = f"run in {parents.pop()}" if together else "run"
    table = Table(box=None)
    for name in (where, "recipe", "state", "tokens", "of the budget", ""):
        table.add_column(name, overflow="fold")
    for status in statuses:
        run = Path(status.run).name if together else status.run
        part = f"{status.tokens / status.total_tokens:.1%}"
        table.add_row(run, status.recipe, status.state, f"{status.tokens:,}", part, status.why)
    return table


def _events_table(status: RunStatus) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    if status.start:
        table.add_row("start", status.start)
    table.add_row("last", status.last)
    table.add_row("next", status.next)
    for step, changed in status.changed.items():
        table.add_row("changed", f"after step {step:,}: {change_text(changed)}")
    return table


def _jobs(status: RunStatus) -> Table:
    table = Table("job", "attempt", "state", "from tokens", "to tokens", "", box=None)
    in_queue = {(job.job, job.state) for job in status.queued or ()}
    for record in status.jobs:
        ended = record.ended or ("not ended" if status.queued is None else "lost")
        if not record.ended and (record.job, "running") in in_queue:
            ended = "running"
        to = "" if record.tokens_at_end is None else f"{record.tokens_at_end:,}"
        begin = f"{record.tokens_at_begin:,}"
        table.add_row(record.job, str(record.attempt), ended, begin, to, record.why)
    shown = {record.job for record in status.jobs if record.ended is None}
    for job in status.queued or ():
        if job.state == "running" and job.job in shown:
            continue
        table.add_row(job.job, "", job.state, "", "", job.why)
    return table
