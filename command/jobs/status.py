"""Status of runs as tables and JSON."""

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
from components.terminal import console


def print_run(folder: Path, output: str) -> None:
    """Print the status of a run, its jobs and its tree, as tables or one JSON object."""
    with cached_answers():
        status = status_of(folder, _scheduler(folder))
        tree = _tree(folder)
        if is_left(folder):
            again = command_line(f"resume={folder}")
            status = replace(status, next=f"its tree is not done; what has no job: {again}")
    known = status.jobs or status.chain is not None
    tables = [_runs([status]), _told(status), *([_jobs(status)] if known else [])]
    if tree:
        tables.append(_nodes(tree))
    answer = status.as_json() | ({"children": tree} if tree else {})
    print_result(output, answer, lambda: _print(*tables))


def _tree(path: Path) -> dict[str, dict[str, Any]]:
    """Say how each node of a run's tree is, by its name."""
    recipe = read_recipe(path / "recipe.json")
    if not recipe.children:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for node in nodes_of(root_of(path)):
        state, why = _node_state(node)
        child = node.child
        found[node.name] = {
            "kind": child.kind,
            "of": child.of,
            "at_tokens": child.at_tokens,
            "every_tokens": child.every_tokens,
            "state": state,
            "job": job_name(recipe, node.name),
            "why": why,
        }
    return found


def _node_state(node: TreeNode) -> tuple[str, str]:
    """Return the state of a node in a word, and the reason for it, if there is one."""
    state = state_of(node)
    if state == QUEUED and node.child.kind == "run":
        run = status_of(node.path, _scheduler(node.path))
        return run.state, run.why
    if node.child.kind == "run" or state in {DONE, WAITING} or _scheduler(node.root) is None:
        return state, ""
    try:
        jobs = queued_jobs(node)
    except SchedulerError as error:
        return state, str(error)
    if jobs or state != QUEUED or node.is_done:
        return (QUEUED, f"job {jobs[0].job} {jobs[0].state}") if jobs else (state_of(node), "")
    again = command_line(f"resume={node.root}")
    return "lost", f"its job ended before it was done; its log: {logs_of(node)}; again: {again}"


def _nodes(tree: Mapping[str, Mapping[str, Any]]) -> Table:
    """Draw a tree, each node below the one that it is of."""
    table = Table("node", "", "after tokens", "state", "job", "", box=None)

    def add(parent: str | None, depth: int) -> None:
        for name, one in tree.items():
            if one["of"] == parent:
                at, every = one["at_tokens"], one["every_tokens"]
                when = f"{at:,}" if every is None else f"every {every:,}"
                said = (one["kind"], when, one["state"], one["job"], one["why"])
                table.add_row(f"{'   ' * depth}└─ {name}", *said)
                add(name, depth + 1)

    add(None, 0)
    return table


def print_runs(folders: Sequence[Path], output: str) -> None:
    """Print a row for each run folder, or one JSON object."""
    with cached_answers():
        found = [status_of(folder, _scheduler(folder)) for folder in folders]
    tree = {"runs": [one.as_json() for one in found]}
    print_result(output, tree, lambda: _print(_runs(found)))


def _print(*tables: Table) -> None:
    out = console(width=160)
    for table in tables:
        out.print(table)


def _scheduler(folder: Path) -> Scheduler | None:
    """Find the scheduler of the run's cluster, if its commands are here."""
    cluster = read_recipe(folder / "recipe.json").cluster
    if cluster.scheduler == "none":
        return None
    scheduler = scheduler_for(cluster)
    return scheduler if shutil.which(scheduler.program) else None


def _runs(found: Sequence[RunStatus]) -> Table:
    parents = {Path(one.run).parent for one in found}
    together = len(found) > 1 and len(parents) == 1
    where = f"run in {parents.pop()}" if together else "run"
    table = Table(box=None)
    for name in (where, "recipe", "state", "tokens", "of the budget", ""):
        table.add_column(name, overflow="fold")
    for one in found:
        run = Path(one.run).name if together else one.run
        part = f"{one.tokens / one.total_tokens:.1%}"
        table.add_row(run, one.recipe, one.state, f"{one.tokens:,}", part, one.why)
    return table


def _told(one: RunStatus) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    if one.start:
        table.add_row("start", one.start)
    table.add_row("last", one.last)
    table.add_row("next", one.next)
    for step, changed in one.changed.items():
        table.add_row("changed", f"after step {step:,}: {change_text(changed)}")
    return table


def _jobs(one: RunStatus) -> Table:
    table = Table("job", "attempt", "state", "from tokens", "to tokens", "", box=None)
    for record in one.jobs:
        ended = record.ended or _not_ended(one, record.job)
        to = "" if record.tokens_at_end is None else f"{record.tokens_at_end:,}"
        begin = f"{record.tokens_at_begin:,}"
        table.add_row(record.job, str(record.attempt), ended, begin, to, record.why)
    shown = {record.job for record in one.jobs if record.ended is None}
    for job in one.queued or ():
        if job.state == "running" and job.job in shown:
            continue
        table.add_row(job.job, "", job.state, "", "", job.why)
    return table


def _not_ended(one: RunStatus, job: str) -> str:
    """Say of a job that told no end whether it runs, which the queue knows."""
    if one.queued is None:
        return "not ended"
    return (
        "running" if any(q.job == job and q.state == "running" for q in one.queued) else "lost"
    )
