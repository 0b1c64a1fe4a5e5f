"""A pass of corpus preparation as a job array: its script, and the errors on its way."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.array import ArrayWork, OnQueue, array_settings, indices_of
from cluster.scheduler import user_name
from cluster.script import fill_template
from cluster.user import User, read_user
from components.config.recipe import Recipe
from components.errors import RecipeError
from data_prep.task import Array, QueuedError, read_array
from tests.cluster.directives import read_directives
from tests.cluster.jobs import CHECKOUT, recipe_of
from tests.cluster.programs import Programs, queued
from tests.data_prep.corpora import clean, preparation_of, write_corpus

JUWELS = ("recipe=teuken7b", "cluster=juwels", "preparation=engine")
FOLDER = Path("/data/stages/clean-123/jobs")
WORDS = ("/data/stages", "clean-123")
WORK = ArrayWork(kind="data", module="data_prep.task", words=WORDS, logs=FOLDER, elements=7)
USER = User(account="kitchen", venv="/path/to/venv")
Prepare = Callable[..., object]
AURORA = (
    *("recipe=teuken7b", "cluster=aurora", "parallelism.data=768", "preparation=engine"),
    "budget.global_batch_tokens=6291456",  # 1,536 sequences: 768 data ranks divide them
)


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Clean a small corpus in the cluster's queue."""
    sources = write_corpus(tmp_path / "texts")

    def act(recipe: Recipe | None = None, user: User = USER, *, wait: bool = True) -> object:
        preparation = preparation_of(executor="array", wait=wait, most_jobs=2, workers=3)
        executor = OnQueue(
            recipe=recipe or recipe_of(*JUWELS),
            preparation=preparation,
            user=user,
            repository=CHECKOUT,
        )
        return clean(sources, tmp_path / "stages", executor=executor)

    return act


def the_pass(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "stages").glob("clean-*")
    return folder


def array_of(tmp_path: Path) -> Array:
    array = read_array(the_pass(tmp_path))
    assert array is not None
    array.save_array(tmp_path)
    assert read_array(tmp_path) == array  # as it was written
    return array


def test_array_has_at_most_the_users_limit_of_jobs(prepare, taking, tmp_path):
    queue = "{name: one, fewest_nodes: 1, most_nodes: 9, longest_hours: 2.0"
    limited = f"cluster.queues=[{queue}, submitted_per_user: 1}}]"
    with pytest.raises(QueuedError):
        prepare(recipe_of(*JUWELS, "cluster.nodes=128", limited), wait=False)
    assert len(array_of(tmp_path).groups) == 1


def test_script_asks_for_a_node_an_element_and_starts_the_task() -> None:
    settings = array_settings(recipe_of(*JUWELS), USER, WORK, repository=CHECKOUT)
    script = fill_template("slurm_array.sh.j2", settings)
    for line in (
        "#SBATCH --job-name=teuken7b-data",
        "#SBATCH --account=kitchen",
        "#SBATCH --partition=booster",
        "#SBATCH --nodes=1",
        "#SBATCH --cpus-per-task=48",
        "#SBATCH --time=24:00:00",
        "#SBATCH --array=0-6",
        "#SBATCH --output=/data/stages/clean-123/jobs/%A_%a.log",
        "source /path/to/venv/bin/activate",
        f"cd {CHECKOUT} || exit",
        'exec python -m data_prep.task /data/stages clean-123 "$SLURM_ARRAY_TASK_ID"',
    ):
        assert script.splitlines().count(line) == 1, line


def test_tasks_are_submitted_once(prepare: Prepare, taking: Programs, tmp_path: Path) -> None:
    with pytest.raises(QueuedError, match=r"77 is queued\n  repeat the command"):
        prepare(wait=False)
    array = array_of(tmp_path)
    assert (array.job, array.workers, len(array.groups)) == ("77", 3, 2)
    assert array.groups[0][:2] == (0, 2)
    tasks = sorted(task for group in array.groups for task in group)
    assert tasks == list(range(len(tasks)))
    says = queued(the_pass(tmp_path) / "jobs", "77_0|PENDING|Priority|")
    taking.add("squeue", says=says)
    with pytest.raises(QueuedError):
        prepare(wait=False)
    assert len([call for call in taking.calls() if call.startswith("sbatch")]) == 1


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("", "", r"clean-\w+: \d+ of \d+ tasks ended without a result.*\n  .*job logs are in"),
        (
            *("sbatch", "sbatch: error: invalid account"),
            r"cluster\.scheduler: sbatch: .*invalid account\n  change .*array\.sh",
        ),
        (
            *("squeue", "socket timed out"),
            r"cluster\.scheduler: squeue: socket .*\n  repeat the command",
        ),
    ],
)
def test_errors_of_an_array_are_reported(program, error, message, prepare, taking):
    if program:
        taking.add(program, error=error, status=1)
    with pytest.raises(RecipeError, match=message):
        prepare()


def test_scheduler_is_required(prepare, programs, monkeypatch):
    monkeypatch.setenv("PATH", str(programs.folder))
    with pytest.raises(RecipeError, match="sbatch is not found; Slurm is not available here"):
        prepare()
    with pytest.raises(RecipeError, match=r"^cluster: local has no scheduler"):
        prepare(recipe_of("recipe=teuken7b", "cluster=local", "preparation=engine"))


def test_script_for_pbs_asks_for_a_node_an_element_and_starts_the_task() -> None:
    settings = array_settings(recipe_of(*AURORA), USER, WORK, repository=CHECKOUT)
    script = fill_template("pbs_array.sh.j2", settings)
    directives = read_directives(script)
    assert directives["-N"] == ["teuken7b-data"]
    assert directives["-l"][0].startswith("select=1")
    assert directives["-J"] == ["0-6"]
    assert directives["-r"] == ["y"]  # qsub takes no array that is not
    assert directives["-o"] == [f"{FOLDER}/"]
    last = 'exec python -m data_prep.task /data/stages clean-123 "$PBS_ARRAY_INDEX"'
    assert script.splitlines()[-1] == last
    # PBS takes no array of one element.
    assert [indices_of(count) for count in (1, 2, 9)] == ["0-1:2", "0-1", "0-8"]


def test_pass_on_pbs_is_sent_once(prepare: Prepare, programs: Programs, tmp_path: Path) -> None:
    programs.add("qsub", says="77[].pbs\n")
    with pytest.raises(QueuedError, match=r"77\[\]\.pbs is queued"):
        prepare(recipe_of(*AURORA), wait=False)
    folder = the_pass(tmp_path)
    owner = {"Job_Owner": f"{user_name()}@login", "Output_Path": f"login:{folder}/jobs/"}
    jobs = {f"77[{index}].pbs": {**owner, "job_state": "Q"} for index in ("", "0")}
    programs.add("qselect", says="77[].pbs\n")
    programs.add("qstat", says=json.dumps({"Jobs": jobs}))
    with pytest.raises(QueuedError):
        prepare(recipe_of(*AURORA), wait=False)
    assert programs.calls()[0] == f"qsub {folder / 'array.sh'}"
    assert not any(call.startswith("qsub") for call in programs.calls()[1:])


def test_array_needs_the_settings_of_its_site(prepare: Prepare, taking: Programs) -> None:
    with pytest.raises(RecipeError, match=r"site\.account: not set"):
        prepare(user=read_user("juwels", {}))
    with pytest.raises(RecipeError, match=r"site\.venv: 'a b' is not allowed in a job script"):
        prepare(user=replace(USER, venv="a b"))
