"""A real OpenPBS on this host: server, scheduler, comm and MoMs in a temporary folder.

They have a network, mounts and host names of their own: node ``n1`` and those after it have
addresses there alone, and their jobs see these. PBS's commands reach the server from outside by
small programs; ``mpiexec`` is the stand-in's, for PBS has none. What was started is stopped by
its process id, and nothing outside the folder is touched.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import openpbs
from tests.cluster.slurm import Daemons, free_ports

COMMANDS = (
    *("qsub", "qstat", "qselect", "qdel", "qalter"),
    *("qmgr", "qhold", "qrls", "qrerun", "pbsnodes"),
)
CONF = """\
PBS_EXEC={exec}
PBS_HOME=/mnt/home
PBS_SERVER=pbs
PBS_START_SERVER=1
PBS_START_SCHED=1
PBS_START_COMM=1
PBS_START_MOM=0
PBS_CORE_LIMIT=0
PBS_DATA_SERVICE_PORT={port}
"""
# PBS takes no loopback address for a server's, nor a home below a folder that all may write.
INSIDE = """\
set -e
ip link set lo up
hostname pbs
cd "$1"
while read -r address name; do ip address add "$address/24" dev lo; done < addresses
(echo 127.0.0.1 localhost; cat addresses) > hosts
mount --bind . /mnt
mount --bind hosts /etc/hosts
exec sleep infinity
"""
COMMAND = """\
#!/bin/sh
export PBS_CONF_FILE={folder}/pbs.conf
exec nsenter --target={pid} --mount --net --uts --wd=. {program} "$@"
"""
MOM = 'hostname "$1"; export PBS_MOM_HOME=/mnt/$1; exec "$2" -N -M "$3" -R "$4" -d "/mnt/$1"'
MOM_FOLDERS = {
    **dict.fromkeys(("aux", "mom_logs"), 0o755),
    **dict.fromkeys(("mom_priv", "mom_priv/jobs", "mom_priv/hooks"), 0o751),
    **dict.fromkeys(("checkpoint", "mom_priv/hooks/tmp"), 0o700),
    **dict.fromkeys(("spool", "undelivered", "tmp"), 0o1777),
}
SETTINGS = (
    "set server acl_roots=root@*",
    "set server flatuid=True",
    "set server scheduler_iteration=5",
    "set server job_requeue_timeout=20",
    # As on Aurora: jobs of one node and more for as long as its scripts ask for.
    "create resource filesystems type=string",
    *(
        f"create queue {name} queue_type=Execution,enabled=True,started=True"
        for name in ("debug", "capacity")
    ),
)


class LocalPbs(Daemons):
    """A server and ``nodes`` nodes, ``n1`` onwards, of 208 cores each, as on Aurora."""

    def __init__(self, *, folder: Path, root: Path, nodes: int) -> None:
        super().__init__(folder)
        self.root = root  # where OpenPBS is installed
        self.nodes = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.programs = folder / "programs"

    def start_all(self) -> None:
        self._enclose()
        self._install()
        for name in ("pbs_comm", "pbs_server", "pbs_sched"):
            self._start_inside(name, str(self.root / "sbin" / name), "-N")
        self.wait_for(lambda: bool(self.call("qstat", "-B", check=False)), 60)
        for setting in SETTINGS:
            self.call("qmgr", "-c", setting)
        for number, node in enumerate(self.nodes):
            self._start_node(node, 15_100 + 10 * number)
        self.wait_for(lambda: self.free() == set(self.nodes), 60)

    def _start_inside(self, name: str, *words: str) -> None:
        self.start(name, str(self.programs / "inside"), *words)

    def __exit__(self, *error: object) -> None:
        if "pbs_server" in self._processes:
            self.call("qdel", "-W", "force", *self._queued(), check=False)
        for name in [*self.nodes, "pbs_sched", "pbs_server", "pbs_comm", "namespaces"]:
            self.stop(name)

    logs_of = ("*.log", "*/*_logs/*")

    def environment(self) -> dict[str, str]:
        return os.environ | {"PATH": f"{self.programs}:{os.environ['PATH']}"}

    def keep_history(self, *, kept: bool) -> None:
        self.call("qmgr", "-c", f"set server job_history_enable={kept}")

    def free(self) -> set[str]:
        """Name the nodes that would take a job."""
        lines = self.call("pbsnodes", "-aS", check=False).splitlines()
        return {line.split()[0] for line in lines if line.split()[1:2] == ["free"]}

    def _queued(self) -> list[str]:
        lines = self.call("qstat", check=False).splitlines()[2:]
        return [line.split()[0] for line in lines]

    def _enclose(self) -> None:
        """Make the namespaces, which one process holds, and the programs that enter them."""
        self.folder.chmod(0o755)  # the database is another user's
        hosts = ["10.9.0.1 pbs", *(f"10.9.0.1{node[1:]} {node}" for node in self.nodes)]
        (self.folder / "addresses").write_text("".join(f"{host}\n" for host in hosts))
        (port,) = free_ports(1)  # the database's socket has it in its name, in a shared folder
        text = CONF.format(exec=self.root, port=port)
        (self.folder / "pbs.conf").write_text(text)
        own = ("unshare", "--net", "--uts", "--mount", "--propagation=private")
        process = self.start("namespaces", *own, "bash", "-c", INSIDE, "-", str(self.folder))
        self.programs.mkdir()
        for name in COMMANDS:
            self._link(name, str(self.root / "bin" / name), process.pid)
        self._link("inside", "", process.pid)
        state = self.folder / "ranks"
        state.mkdir()
        openpbs.link(self.programs, state, ("mpiexec",))
        self.wait_for((self.folder / "hosts").exists, 10)
        time.sleep(0.5)  # the mounts come after it

    def _link(self, name: str, program: str, pid: int) -> None:
        text = COMMAND.format(folder=self.folder, pid=pid, program=program)
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def _install(self) -> None:
        """Make the server's home and database, as a site does once."""
        words = (str(self.programs / "inside"), str(self.root / "libexec" / "pbs_habitat"))
        done = subprocess.run(words, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr

    def _start_node(self, node: str, port: int) -> None:
        home = self.folder / node
        for name, mode in MOM_FOLDERS.items():
            (home / name).mkdir(parents=True)
            (home / name).chmod(mode)
        shutil.copy(self.folder / "home" / "pbs_environment", home)
        config = home / "mom_priv" / "config"
        config.write_text(f"$clienthost pbs\n$usecp *:/ /\n$tmpdir /mnt/{node}/tmp\n")
        config.chmod(0o600)
        daemon = (str(self.root / "sbin" / "pbs_mom"), str(port), str(port + 1))
        self._start_inside(node, "unshare", "--uts", "bash", "-c", MOM, "-", node, *daemon)
        self.call("qmgr", "-c", f"create node {node} port={port}")
        self.call("qmgr", "-c", f"set node {node} resources_available.ncpus=208")


@contextmanager
def local_pbs(nodes: int) -> Iterator[LocalPbs]:
    """Start a server, and stop it at the end; skip where no OpenPBS is found."""
    root = installed()
    if root is None:
        pytest.skip("no OpenPBS found: docs/testing.md says how it is built; set PBS_EXEC")
    if os.geteuid() != 0:
        pytest.skip("PBS starts jobs as their users: needs root")
    own = ("unshare", "--net", "--uts", "--mount", "true")
    made = subprocess.run(own, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"nodes have networks of their own: {made.stderr}")
    with (
        tempfile.TemporaryDirectory(prefix="pbs-") as folder,
        LocalPbs(folder=Path(folder), root=root, nodes=nodes) as server,
    ):
        yield server


def installed() -> Path | None:
    """Find where OpenPBS is installed: ``PBS_EXEC``, else above the ``qsub`` on the path."""
    found = shutil.which("qsub")
    named = os.environ.get("PBS_EXEC") or (found and Path(found).resolve().parents[1])
    root = Path(named) if named else None
    return root if root and (root / "sbin" / "pbs_server.bin").exists() else None
