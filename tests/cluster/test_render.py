"""Bash runs whole job scripts, with a scheduler and a Python that record their arguments."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from urllib.request import proxy_bypass

import pytest

from cluster.job import JobSettings, render_job_script
from cluster.script import quote_word
from tests.cluster.directives import read_directives
from tests.cluster.jobs import job_of, script_of
from tests.cluster.programs import Patch

TEUKEN = ("recipe=teuken7b", "cluster=juwels")
MULA = ("recipe=mula1b", "cluster=aurora")
Words = tuple[str, ...]
Machine = dict[str, str]

# Replaces the environment's Python: it records its arguments. BEGIN and TRAIN set its status.
PYTHON = """#!/bin/bash
echo "python $*" >> "$NOTES"
case "$2" in
  cluster.begin)
    mkdir -p "$3/preflight" && printf '%s\\n' node1 node2 > "$3/preflight/hosts"
    cp "$3/preflight/hosts" "$3/preflight/nodes"
    [ "$4" != again ] && exit "${BEGIN:-0}"
    exit "${AGAIN:-0}" ;;
  cluster.end)
    launched=$(grep -c "components.train" "$NOTES")
    [ "$4" = 0 ] || [ -z "$5" ] || [ "$launched" -ge "${RELAUNCHES:-0}" ] || exit 75
    exit "$4" ;;
  cluster.copies)
    mkdir -p "$3/copies" && printf '%s\n' ${ARCHIVES:?} > "$3/copies/archives"
    exit "${COPIES:-0}" ;;
  components.preflight) sleep "${HANG:-0}"; exit 0 ;;
  cluster.preflight)
    mkdir -p "$3/preflight" && printf '%s\\n' ${GOOD:-node1 node2} > "$3/preflight/nodes"
    exit "${LOOK:-0}" ;;
esac
echo "port $MASTER_PORT at $MASTER_ADDR" >> "$NOTES"
for _ in $(seq "${PATIENCE:-0}"); do [ -e "$3/stop" ] && break; sleep 0.1; done
exit "${TRAIN:-0}"
"""
# Launchers pass over their own options and start one task.
LAUNCHER = """#!/bin/bash
echo "$(basename "$0") $*" >> "$NOTES"
until [[ "$1" =~ ^(python|bash|env|rm)$ ]]; do shift; done
exec "$@"
"""
NOTING = '#!/bin/bash\necho "$(basename "$0") $*" >> "$NOTES"\n'
SBCAST = '#!/bin/bash\necho "sbcast ${4##*/}" >> "$NOTES"\ncp "$3" "$4"\n'
HOSTS = "#!/bin/bash\nprintf 'node1\\nnode2\\n'\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A folder of programs that come first on the path, and the job's own variables."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    texts = {"python": PYTHON, "srun": LAUNCHER, "mpiexec": LAUNCHER, "qsub": NOTING}
    for name, text in {**texts, "sbcast": SBCAST, "scontrol": HOSTS, "module": NOTING}.items():
        (programs / name).write_text(text, "utf-8")
        (programs / name).chmod(0o755)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n', "utf-8")
    (tmp_path / "nodes").write_text("node1\nnode2\n", "utf-8")
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "NOTES": str(tmp_path / "notes"),
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_PER_TASK": "12",
        "PBS_JOBID": "654321.server",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
    }


def here(job: JobSettings, folder: Path) -> JobSettings:
    return replace(job, repository=str(folder), venv=f"{folder}/venv", run=f"{folder}/run")


def brief(words: Words, folder: Path) -> JobSettings:
    """Return a job with an alarm after a second: on PBS its alarm could outlive the test."""
    job = here(job_of(*words), folder)
    return replace(job, lead_seconds=job.walltime_seconds - 1)


def lines_of(machine: Machine) -> list[str]:
    return Path(machine["NOTES"]).read_text("utf-8").splitlines()


def notes(machine: Machine) -> list[str]:
    """Return the calls without two that have no fixed moment.

    These are the checks of the nodes, and the removal of files at the end (`tidied`).
    """
    aside = ("components.preflight", " rm -rf ")
    return [line for line in lines_of(machine) if not any(word in line for word in aside)]


def tidied(machine: Machine) -> str:
    (line,) = (line for line in lines_of(machine) if " rm -rf " in line)
    return line.rpartition(" rm -rf ")[2]


def run(job: JobSettings, machine: Machine, **says: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", render_job_script(job)]
    return subprocess.run(command, env=machine | says, text=True, capture_output=True)


BOTH = pytest.mark.parametrize("words", [TEUKEN, MULA], ids=["slurm", "pbs"])


@pytest.mark.parametrize("words", [(*TEUKEN, "cluster.site.setup=[]"), MULA])
def test_python_imports_the_clone(words: Words, machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "venv" / "bin" / "python"
    file.write_text(PYTHON.replace("python $*", "$PYTHONSAFEPATH $PYTHONPATH $PWD"), "utf-8")
    run(here(job_of(*words), tmp_path), machine | {"PYTHONPATH": ":x:/m:../y::/n"})
    of_python = [line for line in lines_of(machine) if line.startswith("1 ")]
    assert set(of_python) == {f"1 {tmp_path}:/m:/n {tmp_path}"}
    assert len(of_python) >= 4  # begin, both sides of the preflight, ranks, end


def test_job_begins_trains_and_ends_with_its_status(machine: Machine, tmp_path: Path) -> None:
    job = here(job_of(*TEUKEN), tmp_path)
    done = run(job, machine, TRAIN="7")
    assert (done.returncode, done.stderr) == (7, "")
    lines = [line for line in notes(machine) if not line.startswith(("module", "srun"))]
    assert lines == [
        f"python -m cluster.begin {job.run}",
        f"python -m cluster.preflight {job.run}",
        f"python -m components.train {job.run}",
        "port 23456 at node1i",  # the InfiniBand name of the first node
        f"python -m cluster.end {job.run} 7",
    ]
    assert Path(job.run, "ranks").is_dir()


@BOTH
def test_finished_run_starts_no_rank(words: Words, machine: Machine, tmp_path: Path) -> None:
    done = run(here(job_of(*words), tmp_path), machine, BEGIN="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(line.startswith(("srun", "mpiexec", "qsub")) for line in notes(machine))


@pytest.mark.parametrize("status", ["0", "143"])
def test_warning_stops_ranks_and_keeps_status(status, machine, tmp_path):
    job = here(job_of(*TEUKEN), tmp_path)
    process = subprocess.Popen(
        ["bash", "-c", render_job_script(job)],
        env=machine | {"PATIENCE": "100", "TRAIN": status},
    )
    for _ in range(100):
        if Path(machine["NOTES"]).exists() and any("port" in line for line in notes(machine)):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(300) == int(status)
    assert Path(job.run, "stop").exists()
    assert notes(machine)[-1] == f"python -m cluster.end {job.run} {status}"


def test_pbs_script_watches_the_clock_and_queues_a_job(machine, tmp_path):
    job = brief(MULA, tmp_path)
    done = run(job, machine, PATIENCE="100", TRAIN="3")
    assert (done.returncode, done.stderr) == (3, "")
    assert Path(job.run, "stop").exists()
    lines = [line.split()[0] + " " + line.split()[-1] for line in notes(machine)]
    assert lines[1:4] == ["python chain", f"python {job.run}", f"mpiexec {job.run}"]
    assert f"python -m cluster.begin {job.run} chain" in notes(machine)
    assert "port 24321 at node1" in notes(machine)


def test_pbs_job_with_a_successor_is_never_run_again() -> None:
    chained, alone = script_of(*MULA), script_of(*MULA, "cluster.jobs=1")
    assert read_directives(chained)["-r"] == ["n"]
    assert read_directives(alone)["-r"] == ["y"]
    assert "qsub" not in alone


def test_settings_of_the_user_are_in_the_script() -> None:
    settings = (
        "site.account=abc",
        "site.mail=me@x.org",
        "site.reservation=night",
        "site.runs=/r",
    )
    bound = "cluster.site.binding.cores='map_ldom:3,1,7,5'"
    slurm, pbs = (
        script_of(*TEUKEN, *settings, bound),
        script_of(*MULA, *settings, "cluster.site.host_suffix=-ib"),
    )
    assert read_directives(slurm)["--reservation"] == ["night"]
    assert read_directives(slurm)["--mail-user"] == ["me@x.org"]
    assert read_directives(slurm)["--output"] == ["/r/teuken7b-full/jobs/%A_%a.log"]
    assert "srun --kill-on-bad-exit=1 --cpu-bind=map_ldom:3,1,7,5 --output=" in slurm
    assert read_directives(pbs)["-q"] == ["night"]  # a reservation of PBS is a queue
    assert read_directives(pbs)["-M"] == ["me@x.org"]
    assert '"$PBS_NODEFILE")-ib  # the name for other nodes' in pbs
    assert max(len(slurm.splitlines()), len(pbs.splitlines())) < 90


@BOTH
def test_too_few_good_nodes_start_no_rank(words, machine, tmp_path):
    job = brief(words, tmp_path)
    assert run(job, machine, LOOK="1").returncode == 1
    assert notes(machine)[-1].startswith(f"python -m cluster.end {job.run} 1")
    assert not any(line.endswith(f"components.train {job.run}") for line in notes(machine))
    if words is MULA:  # its alarm ends with it
        time.sleep(1.5)
        assert not Path(job.run, "stop").exists()  # or the next job would save at once


@pytest.mark.parametrize(
    ("words", "good", "launched", "meeting"),
    [
        (
            MULA,
            "node2.site node3.site node5.site",
            "-n 36 --ppn 12 --hostfile {run}/preflight/nodes --pmi=pmix ",
            "port 24321 at node2.site",
        ),
        (
            TEUKEN,
            "node2 node3 node5",
            "--nodelist={run}/preflight/nodes --nodes=3 --ntasks=12 python",
            "port 23456 at node2i",
        ),
    ],
    ids=["pbs", "slurm"],
)
def test_ranks_start_on_the_chosen_nodes_and_meet_at_the_first(
    words: Words, good: str, launched: str, meeting: str, machine: Machine, tmp_path: Path
) -> None:
    job = brief((*words, "cluster.spare_nodes=1"), tmp_path)
    assert run(job, machine, GOOD=good).returncode == 0
    (line,) = (line for line in notes(machine) if line.startswith(("srun", "mpiexec")))
    assert launched.format(run=job.run) in line
    assert meeting in notes(machine)


@pytest.mark.long
@BOTH
def test_hanging_node_does_not_stop_others(words, machine, tmp_path):
    job = brief(words, tmp_path)
    began = time.monotonic()
    assert run(job, machine, HANG="600").returncode == 0
    assert time.monotonic() - began < 60
    assert f"python -m components.train {job.run}" in notes(machine)


RANK_SETS = "cluster.site.rank_environment.ROCR_VISIBLE_DEVICES"


def test_rank_sets_variables_and_a_wrapper_starts_it(machine: Machine, tmp_path: Path) -> None:
    own = f"{RANK_SETS}={{value: '$SLURM_LOCALID', reason: one device a rank}}"
    job = here(job_of(*TEUKEN, own, "cluster.site.rank_wrapper=[env, 'WRAPPED=1']"), tmp_path)
    noting = f"{machine['NOTES']}.ranks"
    (tmp_path / "venv" / "bin" / "env").write_text(
        f'#!/bin/bash\necho "$ROCR_VISIBLE_DEVICES $*" >> {noting}\nexec /usr/bin/env "$@"\n'
    )
    (tmp_path / "venv" / "bin" / "env").chmod(0o755)
    done = run(job, machine, SLURM_LOCALID="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(noting).read_text() == f"3 WRAPPED=1 python -m components.train {job.run}\n"


def test_image_and_host_have_their_own_variables() -> None:
    image = (*TEUKEN, "site.image=/p/image.sif")
    inside = "cluster.site.environment.NCCL_DEBUG={value: INFO, side: image, reason: a hang}"
    outside = "cluster.site.environment.PMI_X={value: a, side: host, reason: the launcher}"
    there, here = script_of(*image, inside, outside), script_of(*TEUKEN, inside, outside)
    assert "\nexport APPTAINERENV_NCCL_DEBUG=INFO  # a hang\n" in there
    assert "  env -u PMI_X apptainer exec --nv /p/image.sif python -m components.train" in there
    for line in ("export NCCL_DEBUG=INFO", "export PMI_X=a"):
        assert f"\n{line}  # " in here
    assert "env -u" not in here


def test_python_reads_the_hosts_without_a_proxy(monkeypatch: Patch) -> None:
    script = script_of(*MULA)
    assert script.startswith("#!/bin/bash -l\n")
    (line,) = (line for line in script.splitlines() if line.startswith("export no_proxy="))
    command = ["bash", "-c", f'{line}\nprintf %s "$no_proxy"']
    monkeypatch.setenv("no_proxy", subprocess.check_output(command, text=True))
    for host in ("x4109c0s0b0n0.hsn.cm.aurora.alcf.anl.gov", "localhost", "127.0.0.1"):
        assert proxy_bypass(host)
    assert not proxy_bypass("huggingface.co")


@pytest.mark.parametrize(
    ("value", "quoted"),
    [("0,1", "0,1"), ("a b", "'a b'"), ("", "''"), ("/tmp/$USER", '"/tmp/$USER"')],
)
def test_a_value_is_one_word_of_shell(value: str, quoted: str) -> None:
    assert quote_word(value) == quoted
