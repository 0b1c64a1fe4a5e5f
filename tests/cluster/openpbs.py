"""A strict stand-in for OpenPBS on one host: ``qsub``, ``qstat``, ``qdel``, Cray's ``mpiexec``.

The file is linked under these names. ``qsub`` refuses what the manual does not document; each
job runs in a process of its own, which waits for the jobs it depends on, and ends it at the
wall. State is one JSON file a job in ``$OPENPBS_FOLDER``.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.directives import read_directives

SERVER = "pbs-0001"
NODES = tuple(f"0x7f0000{number:02d}" for number in range(1, 4))
Tree = dict[str, Any]


def folder() -> Path:
    return Path(os.environ["OPENPBS_FOLDER"])


def read(job: str) -> Tree:
    tree: Tree = json.loads((folder() / f"{job}.json").read_text())
    return tree


def write(job: str, tree: Tree) -> None:
    beside = folder() / f".{job}.{os.getpid()}"
    beside.write_text(json.dumps(tree))
    beside.replace(folder() / f"{job}.json")


def qsub(words: list[str]) -> int:
    depend: list[str] = []
    while words[0].startswith("-"):
        option, value, *words = words
        found = re.fullmatch(r"depend=afterany:(\S+)", value)
        assert option == "-W", f"{option} is not documented beside a script"
        assert found, f"{value} is no dependency"
        depend = found[1].split(":")
    (script,) = words
    directives = read_directives(Path(script).read_text())
    job = f"{len(list(folder().glob('*.json'))) + 1}.{SERVER}"
    assert all((folder() / f"{other}.json").exists() for other in depend), "Unknown Job Id"
    tree = {"job_state": "H" if depend else "Q", "directives": directives, "depend": ""}
    write(job, tree | {"Variable_List": {}, "script": str(Path(script).resolve())})
    for other in depend:  # as PBS notes at the job that others wait for
        write(other, read(other) | {"depend": f"beforeany:{job}@{SERVER}"})
    command = [sys.executable, "-m", "tests.cluster.openpbs", "serve", job, *depend]
    subprocess.Popen(command, start_new_session=True)
    sys.stdout.write(f"{job}\n")
    return 0


def serve(words: list[str]) -> int:
    """Run one job to its end."""
    job, *depend = words
    while any(read(other)["job_state"] != "F" for other in depend):
        time.sleep(0.1)
    tree = read(job)
    if tree["job_state"] == "F":  # deleted while it waited
        return 0
    options = tree["directives"]
    nodes = NODES[: int(re.match(r"select=(\d+)", options["-l"][0])[1])]  # type: ignore[index]  # the reader has checked it
    nodefile = folder() / f"{job}.nodes"
    nodefile.write_text("".join(f"{node}\n" for node in nodes))
    (wall,) = (text for text in options["-l"] if text.startswith("walltime="))
    hours, minutes, seconds = map(int, wall.removeprefix("walltime=").split(":"))
    with (Path(options["-o"][0]) / f"{job}.OU").open("ab") as log:
        process = subprocess.Popen(
            ["bash", tree["script"]],
            env=os.environ | {"PBS_JOBID": job, "PBS_NODEFILE": str(nodefile)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        write(job, read(job) | {"job_state": "R", "exec_host": "+".join(nodes)})
        write(job, read(job) | {"session": process.pid})
        try:
            process.wait(3_600 * hours + 60 * minutes + seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    write(job, read(job) | {"job_state": "F", "Exit_status": process.returncode})
    return 0


def qstat(words: list[str]) -> int:
    *options, job = words
    assert options == ["-x", "-f", "-F", "json"], f"{options} are not documented"
    if not (folder() / f"{job}.json").exists():
        sys.stderr.write(f"qstat: Unknown Job Id {job}\n")
        return 153
    sys.stdout.write(json.dumps({"pbs_server": SERVER, "Jobs": {job: read(job)}}) + "\n")
    return 0


def qdel(words: list[str]) -> int:
    for job in words:
        tree = read(job)
        write(job, tree | {"job_state": "F"})
        if "session" in tree:
            os.killpg(tree["session"], signal.SIGKILL)
    return 0


def mpiexec(words: list[str]) -> int:
    """Start ranks on this host; when one fails say so as PALS does, and end the others."""
    ranks, per_node = (int(words[words.index(word) + 1]) for word in ("-n", "--ppn"))
    program = words[words.index("python") :]
    processes = [
        subprocess.Popen(
            program,
            env=os.environ
            | {"PALS_RANKID": str(rank), "PALS_LOCAL_RANKID": str(rank % per_node)},
        )
        for rank in range(ranks)
    ]
    while any(process.poll() is None for process in processes):
        for rank, process in enumerate(processes):
            if process.poll():
                number = process.returncode
                how = f"died from signal {-number}" if number < 0 else f"exited with {number}"
                sys.stderr.write(f"{NODES[rank // per_node]}: rank {rank} {how}\n")
                for other in processes:
                    other.terminate()
                return 1
        time.sleep(0.1)
    return max(process.returncode for process in processes)


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    sys.exit(globals()[name](rest))
