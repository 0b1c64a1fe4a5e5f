"""A real Slurm on this host: one controller and several node daemons in a temporary folder.

``slurmctld`` and each ``slurmd -N NAME`` have ports of their own and keep their state below the
folder; ``munged`` has a key and a socket of its own. What was started is stopped by its
process id, and nothing outside the folder is touched.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Self

import pytest

BUSY_HOST = 3.0  # factor of every limit: a host may be slow or busy
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
# As on JUWELS Booster: 48 cores a node.
CONF = """\
ClusterName=kitchen
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
GresTypes=gpu
ReturnToService=1
SlurmdTimeout=10
KillWait=5
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
NodeName=DEFAULT Sockets=2 CoresPerSocket=24 ThreadsPerCore=1 RealMemory=16000 {resources}
{nodes}
{partitions}
"""
# The same path is another folder on each node; whoever logs in there sees the site's profile.
INSIDE = 'mount --bind "$1" "$2" && mount --bind "$3" /etc/profile && exec "${@:4}"'


@dataclass(frozen=True, kw_only=True)
class Pose:
    """What a site's scheduler knows by name; the first partition is the default.

    ``partitions`` have their longest times; a node has ``gpus`` GPUs and the ``features`` that
    a job may ask for.
    """

    partitions: Mapping[str, str]
    gpus: int
    features: tuple[str, ...]


JUWELS = Pose(
    partitions={"booster": "24:00:00", "develbooster": "02:00:00"}, gpus=4, features=()
)


class Daemons:
    """Processes of a test, with their logs in its folder; stopped by their process ids."""

    logs_of: tuple[str, ...] = ("*.log",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:  # an interrupt too: no daemon is left behind
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        raise NotImplementedError

    def start_all(self) -> None:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What the commands need to find these daemons and no other."""
        raise NotImplementedError

    def call(self, *words: str, check: bool = True) -> str:
        """Run a command and return what it prints."""
        env = self.environment()
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def start(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.out.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                words, env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )
        return self._processes[name]

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one daemon, by default with SIGTERM."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds, or fail with the ends of the daemons' logs."""
        end = time.monotonic() + BUSY_HOST * seconds
        while not holds():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        files = sorted(file for pattern in self.logs_of for file in self.folder.glob(pattern))
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)


class LocalSlurm(Daemons):
    """A cluster of ``nodes`` nodes that are all in each partition.

    Their names are this host's own addresses, 0x7f000001 onwards: no name has to be resolved.
    """

    def __init__(self, *, folder: Path, nodes: int, pose: Pose) -> None:
        super().__init__(folder)
        self.nodes = tuple(f"0x7f0000{number:02d}" for number in range(1, nodes + 1))
        self._pose = pose
        self._ports = dict(zip(("controller", *self.nodes), free_ports(nodes + 1), strict=True))

    def start_all(self) -> None:
        self._configure()
        self._start_munge()
        self.start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            self.start_node(node)
        self.wait_for(lambda: self.idle() == set(self.nodes), 15)

    def __exit__(self, *error: object) -> None:
        if "slurmctld" in self._processes:
            self.call("scancel", "--state=PENDING", "--user=root", check=False)
            self.call("scancel", "--signal=KILL", "--full", "--user=root", check=False)
        for name in [*self.nodes, "slurmctld", "munged"]:
            self.stop(name)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def profile(self) -> Path:
        """What a login shell of a node reads: ``--export=NONE`` gives a job what it exports."""
        return self.folder / "profile"

    def environment(self) -> dict[str, str]:
        """What the commands need to find this cluster and no other."""
        return os.environ | {"SLURM_CONF": str(self.conf), "OMP_NUM_THREADS": "1"}

    def idle(self) -> set[str]:
        """Name the nodes that would take a job."""
        lines = self.call("sinfo", "--noheader", "--Node", "--format=%N %t", check=False)
        return {line.split()[0] for line in lines.splitlines() if line.split()[1] == "idle"}

    @property
    def local(self) -> Path:
        """A folder of each node's own: what one writes there no other node sees."""
        return self.folder / "local"

    def start_node(self, node: str, *before: str) -> None:
        """Start a daemon with mounts of its own, by the program ``before`` if it names one."""
        own = self.folder / f"local-{node}"
        for folder in (own, self.local):
            folder.mkdir(exist_ok=True)
        inside = ("unshare", "--mount", "--propagation=private", "bash", "-c", INSIDE)
        daemon = ("slurmd", "-D", "-N", node, "-f", str(self.conf))
        mounts = (str(own), str(self.local), str(self.profile))
        self.start(node, *inside, "bash", *mounts, *before, *daemon)

    def on_node(self, node: str, *words: str) -> None:
        """Run a command that sees the mounts of a node."""
        mounts = f"--mount=/proc/{self._processes[node].pid}/ns/mnt"
        subprocess.run(["nsenter", mounts, *words], check=True)

    def start_again(self, node: str, *before: str) -> None:
        """Start a node another way, and wait until it takes jobs."""
        self.stop(node)
        self.start_node(node, *before)
        self.wait_for(lambda: node in self.idle(), 30)

    def _configure(self) -> None:
        for node in self.nodes:
            (self.folder / f"spool-{node}").mkdir()
        (self.folder / "state").mkdir()
        self.profile.write_text("")
        lines = [
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
            f"Port={self._ports[node]}"
            for node in self.nodes
        ]
        text = CONF.format(
            folder=self.folder,
            host=socket.gethostname(),
            controller=self._ports["controller"],
            resources=" ".join(self._resources()),
            nodes="\n".join(lines),
            partitions="\n".join(
                f"PartitionName={name} Nodes=ALL MaxTime={longest} State=UP Default={default}"
                for (name, longest), default in zip(
                    self._pose.partitions.items(), chain(["YES"], repeat("NO")), strict=False
                )
            ),
        )
        self.conf.write_text(text)
        self._write_gpus()

    def _resources(self) -> Iterator[str]:
        if self._pose.gpus:
            yield f"Gres=gpu:{self._pose.gpus}"
        if self._pose.features:
            yield f"Feature={','.join(self._pose.features)}"

    def _write_gpus(self) -> None:
        """Any file will do: nothing confines a job to its devices."""
        files = [self.folder / f"gpu{number}" for number in range(self._pose.gpus)]
        for file in files:
            file.touch()
        names = ",".join(self.nodes)
        lines = [f"NodeName={names} Name=gpu File={file}\n" for file in files]
        (self.folder / "gres.conf").write_text("".join(lines))

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1_024))
        key.chmod(0o400)
        words = [
            *("munged", "--foreground", "--force", "--num-threads=2"),
            *(f"--key-file={key}", f"--socket={self.folder}/munge.socket"),
            *(f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log"),
            f"--seed-file={self.folder}/munge.seed",
        ]
        self.start("munged", *words)
        self.wait_for(lambda: (self.folder / "munge.socket").exists(), 10)


@contextmanager
def local_slurm(nodes: int, pose: Pose) -> Iterator[LocalSlurm]:
    """Start a cluster, and stop it at the end; not skipped where one must be had."""
    lack = what_lacks()
    if lack:
        assert "NEEDS_SLURM" not in os.environ, lack
        pytest.skip(lack)  # which program is missing, or that this is not root
    # Not below pytest's own folder: a socket's path has 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        LocalSlurm(folder=Path(folder), nodes=nodes, pose=pose) as cluster,
    ):
        yield cluster


def free_ports(count: int) -> list[int]:
    """Find free ports. The daemons open them a moment later."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def what_lacks() -> str:
    """Say why no cluster can be started here; nothing if one can."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not found: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd starts jobs as their users: needs root"
    own = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return f"each node has mounts of its own: {own.stderr}" if own.returncode else ""
