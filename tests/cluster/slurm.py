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
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
# As on JUWELS Booster: 48 cores and 4 GPUs a node.
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
NodeName=DEFAULT Sockets=2 CoresPerSocket=24 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:4
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=24:00:00 State=UP
PartitionName=devel{partition} Nodes=ALL MaxTime=02:00:00 State=UP
"""


class LocalSlurm:
    """A cluster of ``nodes`` nodes in a partition.

    Their names are this host's own addresses, 0x7f000001 onwards: no name has to be resolved.
    """

    def __init__(self, *, folder: Path, nodes: int, partition: str) -> None:
        self.folder = folder
        self.nodes = tuple(f"0x7f0000{number:02d}" for number in range(1, nodes + 1))
        self._partition = partition
        self._ports = dict(zip(("controller", *self.nodes), free_ports(nodes + 1), strict=True))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._configure()
        try:
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
            for node in self.nodes:
                self.start_node(node)
            self.wait_for(lambda: self.idle() == set(self.nodes), 15)
        except BaseException:  # an interrupt too: no daemon is left behind
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if "slurmctld" in self._processes:
            self.call("scancel", "--state=PENDING", "--user=root", check=False)
            self.call("scancel", "--signal=KILL", "--full", "--user=root", check=False)
        for name in [*self.nodes, "slurmctld", "munged"]:
            self.stop(name)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """What the commands need to find this cluster and no other."""
        return os.environ | {"SLURM_CONF": str(self.conf), "OMP_NUM_THREADS": "1"}

    def call(self, *words: str, check: bool = True) -> str:
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(
            words, env=self.environment(), capture_output=True, text=True, timeout=60
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def idle(self) -> set[str]:
        """Name the nodes that would take a job."""
        lines = self.call("sinfo", "--noheader", "--Node", "--format=%N %t", check=False)
        return {line.split()[0] for line in lines.splitlines() if line.split()[1] == "idle"}

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one daemon, gently unless told otherwise."""
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
        """Wait until something holds, or fail with what the daemons said last."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-2000:]}" for file in files)

    def _configure(self) -> None:
        for node in self.nodes:
            (self.folder / f"spool-{node}").mkdir()
        (self.folder / "state").mkdir()
        lines = [
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
            f"Port={self._ports[node]}"
            for node in self.nodes
        ]
        text = CONF.format(
            folder=self.folder,
            host=socket.gethostname(),
            controller=self._ports["controller"],
            partition=self._partition,
            nodes="\n".join(lines),
        )
        self.conf.write_text(text)
        names = ",".join(self.nodes)
        gpus = f"NodeName={names} Name=gpu File={self.folder}/gpu[0-3]\n"
        (self.folder / "gres.conf").write_text(gpus)
        for number in range(4):  # any file will do: nothing confines a job to its devices
            (self.folder / f"gpu{number}").touch()

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
        self._start("munged", *words)
        self.wait_for(lambda: (self.folder / "munge.socket").exists(), 10)

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                words, env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens at; they are taken a moment later."""
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
    return "" if os.geteuid() == 0 else "slurmd starts jobs as their users: needs root"
