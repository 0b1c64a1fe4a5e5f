"""The scripts run: bash executes them whole, with a scheduler and a Python that take notes."""

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

TEUKEN = ("recipe=teuken7b", "cluster=juwels")
MULA = ("recipe=mula1b", "cluster=aurora")

# Stands for the environment's Python: it notes its words and ends as BEGIN and TRAIN say.
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
def machine(tmp_path: Path) -> dict[str, str]:
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


@pytest.mark.parametrize("words", [(*TEUKEN, "cluster.site.setup=[]"), MULA])
def test_python_in_a_job_imports_the_clone_and_the_absolute_places_of_the_site(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "venv" / "bin" / "python"
    file.write_text(PYTHON.replace("python $*", "$PYTHONSAFEPATH $PYTHONPATH $PWD"), "utf-8")
    run(here(job_of(*words), tmp_path), machine | {"PYTHONPATH": ":x:/m:../y::/n"})
    lines = Path(machine["NOTES"]).read_text("utf-8").splitlines()
    of_python = [line for line in lines if line.startswith("1 ")]
    assert set(of_python) == {f"1 {tmp_path}:/m:/n {tmp_path}"}
    assert len(of_python) >= 4  # begin, both sides of the preflight, ranks, end


def notes(machine: dict[str, str]) -> list[str]:
    """List what was called, without the nodes' own look at themselves: it has no set moment.

    Nor has what tidies the nodes up at the end: see `tidied`.
    """
    lines = Path(machine["NOTES"]).read_text("utf-8").splitlines()
    aside = ("components.preflight", " rm -rf ")
    return [line for line in lines if not any(word in line for word in aside)]


def tidied(machine: dict[str, str]) -> str:
    lines = Path(machine["NOTES"]).read_text("utf-8").splitlines()
    (line,) = (line for line in lines if " rm -rf " in line)
    return line.rpartition(" rm -rf ")[2]


def run(
    job: JobSettings, machine: dict[str, str], **says: str
) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", render_job_script(job)]
    return subprocess.run(command, env=machine | says, text=True, capture_output=True)


def test_a_job_begins_trains_and_ends_with_the_status_of_its_end(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*TEUKEN), tmp_path)
    done = run(job, machine, TRAIN="7")
    assert (done.returncode, done.stderr) == (7, "")
    said = [line for line in notes(machine) if not line.startswith(("module", "srun"))]
    assert said == [
        f"python -m cluster.begin {job.run}",
        f"python -m cluster.preflight {job.run}",
        f"python -m components.train {job.run}",
        "port 23456 at node1i",  # the InfiniBand name of the first node
        f"python -m cluster.end {job.run} 7",
    ]
    assert Path(job.run, "ranks").is_dir()


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_a_run_that_has_finished_ends_the_chain_before_any_rank_starts(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    done = run(here(job_of(*words), tmp_path), machine, BEGIN="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(line.startswith(("srun", "mpiexec", "qsub")) for line in notes(machine))


@pytest.mark.parametrize("status", ["0", "7", "143"])
def test_the_scheduler_s_warning_makes_the_stop_file_and_the_ranks_status_is_kept(
    status: str, machine: dict[str, str], tmp_path: Path
) -> None:
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


def test_pbs_gives_no_warning_so_the_script_watches_the_clock(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*MULA), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1)
    done = run(job, machine, PATIENCE="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(job.run, "stop").exists()


def test_a_pbs_job_queues_its_successor_as_it_begins(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*MULA), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1)  # or its alarm outlives the test
    assert run(job, machine, TRAIN="3").returncode == 3
    said = [line.split()[0] + " " + line.split()[-1] for line in notes(machine)]
    assert said[1:4] == ["python chain", f"python {job.run}", f"mpiexec {job.run}"]
    assert f"python -m cluster.begin {job.run} chain" in notes(machine)
    assert "port 24321 at node1" in notes(machine)


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_what_a_job_keeps_on_its_nodes_goes_with_it(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*words), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1, node_folder=str(tmp_path))
    assert run(job, machine, TRAIN="3").returncode == 3
    assert tidied(machine).startswith(f"{tmp_path}/kochbuch-")


IMAGE = ("site.image=/images/torch.sif", "cluster.site.container='apptainer exec --nv'")


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_with_an_image_the_host_talks_to_the_scheduler_and_the_image_computes(
    words: tuple[str, ...],
) -> None:
    script = script_of(*words, *IMAGE)
    began, ended, looked, ranks = (
        [line.strip() for line in script.splitlines() if f"-m {name}" in line]
        for name in ("cluster.begin", "cluster.end", "cluster.preflight", "components.train")
    )
    host = "/path/to/kochbuch/.venv/bin/python"
    inside = "apptainer exec --nv /images/torch.sif python"
    assert {line.startswith(f"{host} -m") for line in began} == {True}
    assert f"{host} -m cluster.end" in ended[-1]
    assert looked[0].startswith(f"{inside} -m cluster.preflight")
    assert f"{inside} -m components.train" in ranks[-1]
    assert "activate" not in script
    own = script_of(*words, *IMAGE, "site.host_python=/opt/python/bin/python3.12")
    assert "\n/opt/python/bin/python3.12 -m cluster.begin" in own


def test_a_rank_of_a_chain_logs_by_the_name_of_its_job() -> None:
    chained, alone = (
        read_directives(script_of(*TEUKEN, f"cluster.jobs={count}")) for count in (3, 1)
    )
    assert chained["--output"][0].endswith("/jobs/%A_%a.log")
    assert alone["--output"][0].endswith("/jobs/%j.log")
    assert '--output="$run/ranks/%A_%a-%N.log" --label' in script_of(*TEUKEN, "cluster.jobs=3")
    assert '--output="$run/ranks/%j-%N.log" --label' in script_of(*TEUKEN, "cluster.jobs=1")


def test_a_pbs_job_with_a_successor_is_never_run_again() -> None:
    chained, alone = job_of(*MULA), job_of(*MULA, "cluster.jobs=1")
    assert read_directives(render_job_script(chained))["-r"] == ["n"]
    assert read_directives(render_job_script(alone))["-r"] == ["y"]
    assert "qsub" not in render_job_script(alone)


def test_everything_the_user_says_is_in_the_script_and_it_still_fits() -> None:
    said = ("site.account=abc", "site.mail=me@x.org", "site.reservation=night", "site.runs=/r")
    slurm, pbs = script_of(*TEUKEN, *said), script_of(*MULA, *said)
    assert read_directives(slurm)["--reservation"] == ["night"]
    assert read_directives(slurm)["--mail-user"] == ["me@x.org"]
    assert read_directives(slurm)["--output"] == ["/r/teuken7b-full/jobs/%A_%a.log"]
    assert read_directives(pbs)["-q"] == ["night"]  # a reservation of PBS is a queue
    assert read_directives(pbs)["-M"] == ["me@x.org"]
    assert max(len(slurm.splitlines()), len(pbs.splitlines())) < 90


def test_cores_are_bound_where_a_profile_says_so() -> None:
    assert "--cpu-bind list:2-4:10-12:" in script_of(*MULA)
    assert "--cpu-bind" not in script_of(*TEUKEN)
    bound = script_of(*TEUKEN, "cluster.site.binding.cores='map_ldom:3,1,7,5'")
    assert "srun --kill-on-bad-exit=1 --cpu-bind=map_ldom:3,1,7,5 --output=" in bound


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_too_few_good_nodes_end_the_job_before_any_rank_starts(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*words), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1)  # or its alarm outlives the test
    done = run(job, machine, LOOK="1")
    assert done.returncode == 1
    assert notes(machine)[-1].startswith(f"python -m cluster.end {job.run} 1")
    assert not any(line.endswith(f"components.train {job.run}") for line in notes(machine))


def test_the_alarm_of_pbs_ends_with_a_job_whose_nodes_are_too_bad(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*MULA), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1)
    assert run(job, machine, LOOK="1").returncode == 1
    time.sleep(1.5)
    assert not Path(job.run, "stop").exists()  # or the next job would save at once


def test_under_pbs_ranks_start_on_the_chosen_nodes_and_meet_at_the_first_of_them(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*MULA, "cluster.spare_nodes=1"), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1)  # or its alarm outlives the test
    assert run(job, machine, GOOD="node2.site node3.site node5.site").returncode == 0
    (launched,) = (line for line in notes(machine) if line.startswith(("srun", "mpiexec")))
    chosen = f"-n 36 --ppn 12 --hostfile {job.run}/preflight/nodes --pmi=pmix "
    assert chosen in launched
    assert "port 24321 at node2.site" in notes(machine)


def test_ranks_start_on_the_nodes_that_were_chosen_and_meet_at_the_first_of_them(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*TEUKEN, "cluster.spare_nodes=1"), tmp_path)
    assert run(job, machine, GOOD="node2 node3 node5").returncode == 0
    (launched,) = (line for line in notes(machine) if line.startswith(("srun", "mpiexec")))
    chosen = f"--nodelist={job.run}/preflight/nodes --nodes=3 --ntasks=12 python"
    assert chosen in launched
    assert "port 23456 at node2i" in notes(machine)


@pytest.mark.long
@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_a_node_that_hangs_does_not_keep_the_ranks_from_starting_on_the_others(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*words), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1)  # or its alarm outlives the test
    began = time.monotonic()
    assert run(job, machine, HANG="600").returncode == 0
    assert time.monotonic() - began < 60
    assert f"python -m components.train {job.run}" in notes(machine)


def test_who_wants_no_preflight_has_none_in_the_script() -> None:
    for words in (TEUKEN, MULA):
        script = script_of(*words, "cluster.preflight=none")
        assert "components.preflight" not in script
        assert "cluster.preflight" not in script


def test_a_user_adds_a_variable_with_its_reason() -> None:
    added = "cluster.site.environment.NCCL_DEBUG={value: INFO, reason: I look for a hang}"
    assert "\nexport NCCL_DEBUG=INFO  # I look for a hang\n" in script_of(*TEUKEN, added)


RANK_SETS = "cluster.site.rank_environment.ROCR_VISIBLE_DEVICES"


def test_a_rank_sets_its_own_variables_and_a_wrapper_starts_it(
    machine: dict[str, str], tmp_path: Path
) -> None:
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


def test_in_an_image_each_side_has_its_own_variables() -> None:
    image = (*TEUKEN, "site.image=/p/image.sif")
    inside = "cluster.site.environment.NCCL_DEBUG={value: INFO, side: image, reason: a hang}"
    outside = "cluster.site.environment.PMI_X={value: a, side: host, reason: the launcher}"
    there, here = script_of(*image, inside, outside), script_of(*TEUKEN, inside, outside)
    assert "\nexport APPTAINERENV_NCCL_DEBUG=INFO  # a hang\n" in there
    assert "  env -u PMI_X apptainer exec --nv /p/image.sif python -m components.train" in there
    for line in ("export NCCL_DEBUG=INFO", "export PMI_X=a"):
        assert f"\n{line}  # " in here
    assert "env -u" not in here


def test_what_is_past_the_proxy_is_read_so_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_of(*MULA)
    assert script.startswith("#!/bin/bash -l\n")
    (line,) = (line for line in script.splitlines() if line.startswith("export no_proxy="))
    completed = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$no_proxy"'], text=True, capture_output=True
    )
    monkeypatch.setenv("no_proxy", completed.stdout)
    for host in ("x4109c0s0b0n0.hsn.cm.aurora.alcf.anl.gov", "localhost", "127.0.0.1"):
        assert proxy_bypass(host)
    assert not proxy_bypass("huggingface.co")


@pytest.mark.parametrize(
    ("value", "quoted"),
    [("0,1", "0,1"), ("a b", "'a b'"), ("", "''"), ("/tmp/$USER", '"/tmp/$USER"')],
)
def test_a_value_is_one_word_of_shell(value: str, quoted: str) -> None:
    assert quote_word(value) == quoted
