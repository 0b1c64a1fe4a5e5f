"""A strict stand-in for OpenPBS on one host: its commands, and Cray's ``mpiexec``.

``link`` writes programs of these names. ``qsub`` refuses undocumented options. Each job has its
own process, which waits for the jobs it depends on, and ends the job at its time limit. The
state is one JSON file for each job in ``$OPENPBS_FOLDER``, with history. Dependencies follow
OpenPBS's ``req_register.c`` and its test: the job that others wait for has
``beforeany:ID@server``, also after its end, and deleting a held job deletes the jobs that wait
for it.

`test_pbs_life.py` compares the status and output of its commands with a real OpenPBS 23.06:
``qstat`` with and without a history of jobs ($OPENPBS_HISTORY is off), ``qdel``, ``qalter``,
``qsub -W``; ``qselect -u`` follows its manual. ``exec_host`` is ``NODE/0*CORES+...``, as
there. Of its source are the ``Hold_Types`` s of a job that depends on another, and -29 for
one killed at its wall.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SERVER = "pbs-0001"
NODES = tuple(f"0x7f0000{number:02d}" for number in range(1, 5))
SCRIPT = """#!/bin/sh
export OPENPBS_FOLDER={folder} OPENPBS_OWNER={owner}
PYTHONPATH={root} exec {python} -m tests.cluster.openpbs {name} "$@"
"""
HOLDS_BEFORE_KILL_SECONDS = 3
KILLED_AT_WALL = -29
FINISHED = "Job has finished, use -x or -H to obtain historical job information"
HISTORY_OFF = "PBS is not configured to maintain job history"
Tree = dict[str, Any]


PROGRAMS = ("qsub", "qstat", "qselect", "qdel", "qalter", "mpiexec")


def link(programs: Path, state: Path, names: Sequence[str] = PROGRAMS) -> None:
    """Write the programs into one folder; their jobs are kept in the other."""
    for name in names:
        text = SCRIPT.format(
            folder=state, owner=os.getpid(), root=ROOT, python=sys.executable, name=name
        )
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)


def folder() -> Path:
    return Path(os.environ["OPENPBS_FOLDER"])


def job_id(number: int) -> str:
    """Name the ``number``-th job of this server, from 1.

    Every folder counts from elsewhere: a job's number makes its port, and servers that two
    tests run at once share a host.
    """
    return f"{zlib.crc32(str(folder()).encode()) % 9_000 + number}.{SERVER}"


def next_job() -> str:
    return job_id(len(list(folder().glob("[0-9]*.json"))) + 1)


def read(job: str) -> Tree:
    tree: Tree = json.loads((folder() / f"{job}.json").read_text())
    return tree


@contextmanager
def locked() -> Iterator[None]:
    with (folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keeps_history() -> bool:
    return os.environ.get("OPENPBS_HISTORY") != "off"


def known(job: str) -> bool:
    """Whether the server knows a job: without history only until it has ended."""
    there = (folder() / f"{job}.json").exists()
    return there and (keeps_history() or read(job)["job_state"] != "F")


def write(job: str, tree: Tree) -> None:
    beside = folder() / f".{job}.{os.getpid()}"
    beside.write_text(json.dumps(tree))
    beside.replace(folder() / f"{job}.json")


def change(job: str, **attributes: object) -> None:
    with locked():
        write(job, read(job) | attributes)


def refuse(name: str, text: str, status: int) -> int:
    sys.stderr.write(f"{name}: {text}\n")
    return status


def qsub(words: list[str]) -> int:
    depend: list[str] = []
    while words[0].startswith("-"):
        option, value, *words = words
        found = re.fullmatch(r"depend=afterany:(\S+)", value)
        if option != "-W" or not found:
            return refuse("qsub", f"illegal {option} value", 2)
        depend = found[1].split(":")
    from tests.cluster.directives import read_directives  # takes its time, and qstat none

    (script,) = words
    text = Path(script).read_text()
    try:
        directives = read_directives(text)
    except AssertionError as error:
        return refuse("qsub", f"illegal directive: {error}", 2)
    with locked():
        job = next_job()
        waits = [other for other in depend if known(other) and read(other)["job_state"] != "F"]
        write(job, _queued(job, text, directives, waits))
        for other in waits:
            write(other, waited_for(read(other), job))
    command = [sys.executable, "-m", "tests.cluster.openpbs", "serve", job]
    subprocess.Popen(
        command,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    sys.stdout.write(f"{job}\n")
    return 0


def _queued(job: str, text: str, directives: dict[str, list[str]], waits: list[str]) -> Tree:
    from cluster.scheduler import user_name

    tree = {
        "Job_Name": directives["-N"][0],
        "Job_Owner": f"{user_name()}@login",
        "job_state": "H" if waits else "Q",
        "Hold_Types": "s" if waits else "n",
        "Resource_List": {"select": directives["-l"][0].removeprefix("select=")},
        "Output_Path": f"login:{directives['-o'][0]}",
        "waits": waits,
        "script": text,  # PBS keeps its own copy
        "directives": directives,
    }
    if waits:
        tree["depend"] = "afterany:" + ":".join(f"{other}@{SERVER}" for other in waits)
    return tree


def waited_for(tree: Tree, job: str) -> Tree:
    kinds = [kind for kind in str(tree.get("depend", "")).split(",") if kind]
    before = [kind for kind in kinds if kind.startswith("beforeany:")]
    others = [kind for kind in kinds if kind not in before]
    added = f"{before[0] if before else 'beforeany'}:{job}@{SERVER}"
    return tree | {"depend": ",".join([*others, added])}


def serve(words: list[str]) -> int:
    """Run one job to its end."""
    (job,) = words
    while any(read(other)["job_state"] != "F" for other in read(job)["waits"]):
        if read(job)["job_state"] == "F":
            return 0
        time.sleep(0.1)
    with locked():
        tree = read(job)
        if tree["job_state"] == "F":  # deleted while it waited
            return 0
        process = _start(job, tree)
        nodes = "+".join(f"{node}/0*48" for node in _nodes(tree))
        state = {"job_state": "R", "Hold_Types": "n", "exec_host": nodes}
        write(job, tree | state | {"session": process.pid})
    walled = _wait(process, _wall(tree))
    status = KILLED_AT_WALL if walled else process.returncode
    change(job, job_state="F", Exit_status=status)
    return 0


def _wait(process: subprocess.Popen[bytes], seconds: int) -> bool:
    """Wait for a job; end it at its wall, and when those who started this server are gone.

    Return whether its wall ended it.
    """
    walled = False
    end = time.monotonic() + seconds
    owner = Path("/proc", os.environ["OPENPBS_OWNER"])
    while process.poll() is None:
        walled = time.monotonic() > end
        if walled or not owner.exists():
            _end(process.pid)
        time.sleep(0.1)
    return walled


def _nodes(tree: Tree) -> tuple[str, ...]:
    return NODES[: int(tree["Resource_List"]["select"].partition(":")[0])]


def _wall(tree: Tree) -> int:
    (wall,) = (text for text in tree["directives"]["-l"] if text.startswith("walltime="))
    hours, minutes, seconds = map(int, wall.removeprefix("walltime=").split(":"))
    return 3_600 * hours + 60 * minutes + seconds


def _start(job: str, tree: Tree) -> subprocess.Popen[bytes]:
    # Only arrays of one element, 0, are supported. A real PBS gives the element its own id.
    own = {"PBS_ARRAY_INDEX": "0"} if tree["directives"].get("-J") == ["0-1:2"] else {}
    nodefile, script = folder() / f"{job}.nodes", folder() / f"{job}.SC"
    nodefile.write_text("".join(f"{node}\n" for node in _nodes(tree)))
    script.write_text(tree["script"])
    with (Path(tree["directives"]["-o"][0]) / f"{job}.OU").open("ab") as log:
        return subprocess.Popen(
            ["bash", str(script)],
            env=os.environ | {"PBS_JOBID": job, "PBS_NODEFILE": str(nodefile)} | own,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _end(session: int) -> None:
    """End a job as its MoM does: ask, then kill."""
    try:
        os.killpg(session, signal.SIGTERM)
        for _ in range(10 * HOLDS_BEFORE_KILL_SECONDS):
            time.sleep(0.1)
            os.killpg(session, 0)
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def qselect(words: list[str]) -> int:
    """List the ids of a user's jobs that have not finished."""
    if words[:1] != ["-u"] or len(words) != 2:
        return refuse("qselect", f"illegal options {words}", 2)
    for file in sorted(folder().glob("[0-9]*.json")):
        tree = json.loads(file.read_text())
        if tree["job_state"] != "F" and tree["Job_Owner"].partition("@")[0] == words[1]:
            sys.stdout.write(f"{file.stem}\n")
    return 0


def qstat(words: list[str]) -> int:
    """Describe jobs: those that are known, though others are not."""
    after = words.index("json") + 1 if "json" in words else len(words)
    options, jobs = words[:after], words[after:]
    if options not in (["-x", "-f", "-F", "json"], ["-f", "-F", "json"]):
        return refuse("qstat", f"illegal options {options}", 2)
    if not keeps_history() and "-x" in options:
        sys.stdout.write(json.dumps({"timestamp": 1, "pbs_server": SERVER}) + "\n")
        return refuse("qstat", f"{HISTORY_OFF} {jobs[0]}", 0)
    status, found = 0, {}
    for job in jobs:
        if not known(job):
            status = refuse("qstat", f"Unknown Job Id {job}", 153)
        elif read(job)["job_state"] == "F" and "-x" not in options:
            status = refuse("qstat", f"{job} {FINISHED}", 35)
        else:
            kept = {k: value for k, value in read(job).items() if k not in {"script", "waits"}}
            found[job] = kept
    if found:
        sys.stdout.write(json.dumps({"pbs_server": SERVER, "Jobs": found}) + "\n")
    return status


def qalter(words: list[str]) -> int:
    """Change the select statement of a job that waits; of one that runs it is fixed."""
    option, value, job = words
    found = re.fullmatch(r"select=(\d+)(:\S+)?", value)
    if option != "-l" or not found:
        return refuse("qalter", f"illegal option {option} {value}", 2)
    if read(job)["job_state"] not in {"H", "Q"}:
        fixed = "Cannot modify attribute while job running  Resource_List.select"
        return refuse("qalter", f"{fixed} {job}", 167)
    if int(found[1]) > len(NODES):
        return refuse("qalter", "Job violates queue and/or server resource limits", 188)
    change(job, Resource_List={"select": value.removeprefix("select=")})
    return 0


def qdel(words: list[str]) -> int:
    status = 0
    for job in words:
        with locked():
            if not known(job):
                status = refuse("qdel", f"Unknown Job Id {job}", 153)
                continue
            tree = read(job)
            if tree["job_state"] == "F":
                status = refuse("qdel", f"Job has finished {job}", 35)
                continue
            if tree["job_state"] in {"H", "Q"}:
                _abort(job)
        if tree["job_state"] == "R":
            _end(tree["session"])
    return status


def _abort(job: str) -> None:
    """Delete a job that waits, and with it those that wait for it."""
    tree = read(job)
    write(job, tree | {"job_state": "F"})
    for other in re.findall(r"beforeany:(\S+)", str(tree.get("depend", ""))):
        for name in other.split(":"):
            _abort(name.partition("@")[0])


def mpiexec(words: list[str]) -> int:
    """Start ranks on this host, report failed ranks as PALS does, and end the others.

    The nodes come from ``--hostfile`` or else from the job. Options and defaults match HPE's
    client (Cray-HPE/craycli, cray/modules/mpiexec/cli.py). Each node is filled before the
    next, as Intel's mpirun documents it. A process knows by ``OPENPBS_NODE`` on which it is,
    and by the host's name where ``OPENPBS_HOSTS`` is set.
    """
    options, program = split_options(words)
    ranks, per_node = (int(options[options.index(word) + 1]) for word in ("-n", "--ppn"))
    named = options[options.index("--hostfile") + 1] if "--hostfile" in options else None
    nodes = Path(named or os.environ["PBS_NODEFILE"]).read_text().split()
    if ranks > per_node * len(nodes):
        return refuse("mpiexec", f"{ranks} ranks on {len(nodes)} nodes", 1)
    with (folder() / "ranks").open("a") as file:
        module = program[program.index("-m") + 1] if "-m" in program else program[0]
        file.write(f"{module} {' '.join(nodes)}\n")
    processes = {
        rank: subprocess.Popen(
            [*_on(nodes[rank // per_node]), *program],
            env=os.environ
            | {"PALS_RANKID": str(rank), "PALS_LOCAL_RANKID": str(rank % per_node)}
            | {"OPENPBS_NODE": nodes[rank // per_node]},
        )
        for rank in range(ranks)
    }
    return _watch(processes, nodes, per_node, ends="--no-abort-on-failure" not in options)


def _on(node: str) -> list[str]:
    """Start a rank under its node's name; it ends with this launcher, as PALS's do."""
    if "OPENPBS_HOSTS" not in os.environ:
        return []
    ends = ("setpriv", "--pdeathsig", "KILL")
    return ["unshare", "--uts", *ends, "sh", "-c", 'hostname "$0" && exec "$@"', node]


def split_options(words: list[str]) -> tuple[list[str], list[str]]:
    """Part a launcher's own words from the program that it starts."""
    at = 0
    while words[at].startswith("-"):
        at += 2 if words[at] in {"-n", "--ppn", "--hostfile", "--cpu-bind"} else 1
    return words[:at], words[at:]


def _watch(
    processes: dict[int, subprocess.Popen[bytes]],
    nodes: list[str],
    per_node: int,
    *,
    ends: bool,
) -> int:
    """Wait for all ranks. By default a failed rank ``ends`` the others."""
    status, running = 0, dict(processes)
    while running:
        for rank, process in list(running.items()):
            number = process.poll()
            if number is not None:
                del running[rank]
            if number:
                how = f"died from signal {-number}" if number < 0 else f"exited with {number}"
                sys.stderr.write(f"{nodes[rank // per_node]}: rank {rank} {how}\n")
                status = status or abs(number)
                for other in running.values() if ends else ():
                    other.terminate()
        time.sleep(0.1)
    return status


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    sys.exit(globals()[name](rest))
