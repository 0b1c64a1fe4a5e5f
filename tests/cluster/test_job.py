"""Queue, hours, chain and environment of a job, and its user's settings."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.job import MOST_JOBS
from cluster.user import User, missing_setting_error, read_user
from command.files import trusted_paths
from components.config.fingerprint import compute_fingerprint
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from tests.cluster.directives import read_directives
from tests.cluster.jobs import CHECKOUT, ROOT, job_of, recipe_of, script_of
from tests.cluster.programs import Patch

TEUKEN = ("recipe=teuken7b", "cluster=juwels")
MULA = ("recipe=mula1b", "cluster=aurora")
SMNG = ("recipe=gpt175b", "cluster=smng_p2")
BLOOM = ("recipe=bloom176b", "cluster=jean_zay")
SMOKE = "cluster.smoke=true"
SHORT = (*TEUKEN, "budget.total_tokens=419430400")


def test_chain_is_as_long_as_the_upper_bound_of_the_plan() -> None:
    job, plan = job_of(*TEUKEN), plan_recipe(recipe_of(*TEUKEN))
    assert plan.cost_estimate is not None
    longest = plan.cost_estimate.days * 24 * 3_600 * (1 + plan.error_fraction)
    useful = job.walltime_seconds - job.lead_seconds
    assert (job.jobs - 1) * useful < longest <= job.jobs * useful


def test_the_warning_leaves_time_for_a_step_and_a_checkpoint() -> None:
    assert job_of(*SMNG).lead_seconds - 600 >= 120  # a step of two minutes
    assert job_of(*TEUKEN).lead_seconds == 600 + 60


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (SHORT, {"walltime": "02:00:00", "jobs": 1}),
        ((*MULA, "cluster.hours=1"), {"queue": "prod"}),  # debug-scaling would allow it too
        ((*MULA, "cluster.hours=1", "cluster.nodes=8"), {"queue": "capacity"}),
        ((*MULA, "cluster.hours=1", "cluster.nodes=32"), {"queue": "debug-scaling"}),
        ((*TEUKEN, "site.queue=mine", "cluster.hours=2"), {"queue": "mine"}),
        (
            (*TEUKEN, SMOKE),
            {"nodes": 2, "queue": "develbooster", "walltime": "00:30:00", "jobs": 1},
        ),
        ((*MULA, SMOKE), {"nodes": 2, "queue": "debug", "walltime": "00:30:00"}),
        (
            ("recipe=gpt3b6", "cluster=smng_p2", SMOKE, "cluster.nodes=1"),
            {"nodes": 1, "queue": "general", "walltime": "00:30:00"},
        ),
        (BLOOM, {"account": "<account>@a100"}),
        ((*BLOOM, "site.account=abc"), {"account": "abc@a100"}),
        (("recipe=playbook1b", "cluster=hopper"), {"account": None}),
        (TEUKEN, {"venv": f"{CHECKOUT}/.venv", "python": "python"}),
        (
            (*TEUKEN, "site.image=/p/image.sif"),
            {"venv": None, "python": "apptainer exec --nv /p/image.sif python"},
        ),
        (TEUKEN, {"run": f"{CHECKOUT}/runs/teuken7b-full"}),
        ((*TEUKEN, "site.runs=/scratch/runs"), {"run": "/scratch/runs/teuken7b-full"}),
        ((*TEUKEN, "site.runs=/scratch/runs", "run=/other"), {"run": "/other"}),
    ],
)
def test_settings_of_a_job(words: tuple[str, ...], found: dict[str, object]) -> None:
    job = job_of(*words)
    assert {name: getattr(job, name) for name in found} == found


def test_run_with_phases_has_a_job_more_for_each_border() -> None:
    phases = "phases={long: {from_fraction: 0.5}, last: {from_fraction: 0.9}}"
    job = job_of(*SHORT, phases)
    assert job.jobs == job.needed_jobs == 3
    blind = (*SHORT, phases, "cluster.hardware.across.peak_gigabytes_per_second=null")
    job = job_of(*blind, "cluster.hardware.across.by_nodes=[]")
    assert (job.jobs, job.needed_jobs) == (3, None)


def test_smoke_job_of_the_miniature_has_the_layout_of_the_recipe() -> None:
    recipe = recipe_of(*SMNG, SMOKE, "scale=mini")
    assert (recipe.cluster.nodes, recipe.cluster.ranks) == (2, 16)
    assert recipe.parallelism.tensor * recipe.parallelism.pipeline > 1


def test_user_sets_the_length_of_a_chain_without_a_plan() -> None:
    words = ("recipe=lucie_7b", "cluster=jean_zay_h100")
    job = job_of(*words)
    assert job.jobs == 1
    assert job.notes[0].startswith("cluster.jobs: the plan lacks measurements")
    job = job_of(*words, "cluster.jobs=10")
    assert (job.jobs, job.notes) == (10, ())


def test_chain_longer_than_an_array_is_cut_with_a_note() -> None:
    job = job_of(*TEUKEN, "cluster.hours=1")
    assert job.jobs == MOST_JOBS
    assert "jobs, but an array has at most 1,000" in job.notes[0]


def aurora(data: int, batch: int) -> tuple[str, ...]:
    return (*MULA, f"parallelism.data={data}", f"budget.global_batch_tokens={batch}")


AURORA64, MULA16 = aurora(768, 3_145_728), aurora(192, 786_432)


def test_script_is_one_job_if_a_user_has_one_and_names_queues_for_a_chain() -> None:
    job = job_of(*AURORA64)
    assert (job.queue, job.jobs, job.walltime) == ("debug-scaling", 1, "01:00:00")
    assert job.needed_jobs is not None
    assert job.needed_jobs > 1
    (note,) = job.notes
    assert "for 17 to 255 nodes aurora has only debug-scaling, 1 h" in note
    assert note.endswith("cut to 16 (capacity, 168 h) or raise to 256 (prod, 12 h)")
    assert "qsub" not in script_of(*AURORA64)
    spare = job_of(*MULA16, "cluster.spare_nodes=1")
    assert (spare.nodes, spare.queue, spare.jobs) == (17, "debug-scaling", 1)


DEV = (*BLOOM, "scale=mini", "cluster.nodes=2", "site.queue=qos_gpu_a100-dev")


def test_array_has_no_more_jobs_than_a_user_may_have_submitted() -> None:
    assert "#SBATCH --array=1-10%1\n" in script_of(*DEV, "cluster.jobs=10")
    assert job_of(*DEV, "cluster.jobs=4").runs_at_once == 2
    assert job_of(*MULA16).runs_at_once == 2  # on PBS a job and its successor, of five


def test_queue_adds_its_directives() -> None:
    queue = "{name: boost, fewest_nodes: 1, most_nodes: 936, longest_hours: 24.0"
    script = script_of(*TEUKEN, f"cluster.queues=[{queue}, options: ['--qos=large']}}]")
    assert "#SBATCH --partition=boost\n" in script
    assert "#SBATCH --qos=large\n" in script


def test_queue_by_request_is_noted() -> None:
    assert job_of(*TEUKEN, "cluster.spare_nodes=300").notes == (
        "cluster.nodes: 428: largebooster is by request (arranged with JSC); "
        "without one: cut to 384 (booster, 24 h)",
    )


def test_missing_settings_of_a_site_are_placeholders() -> None:
    job = job_of(*BLOOM)
    assert [error.path for error in job.missing] == ["site.account"]
    message = r"site\.account: not set, and jean_zay requires an account"
    with pytest.raises(RecipeError, match=message):
        job.check_complete()
    job_of(*BLOOM, "site.account=abc").check_complete()
    job = job_of("recipe=gpt3b6", "cluster=smng_p2", "cluster.site.queue=null")
    assert job.queue == "<queue>"
    assert [error.path for error in job.missing] == ["site.account", "site.queue"]


def test_image_is_copied_to_the_nodes_and_ranks_start_in_the_copy() -> None:
    script = script_of(*TEUKEN, "cluster.imports=node_local", "site.image=/p/image.sif")
    for text in (
        '-m cluster.copies "$run" /p/image.sif ||',
        '"${on_node[@]}" apptainer exec --nv "$node/image" python -m components.train "$run"',
        "\n/path/to/kochbuch/.venv/bin/python -m cluster.begin",
        '"$node/image" python -m components.preflight "$run"',
    ):
        assert text in script


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("recipe=teuken7b",), r"local has no .*\n  set cluster=juwels, or .* action=train"),
        ((*TEUKEN, "cluster.site=none"), r"cluster\.site: the profile of juwels does not"),
        ((*TEUKEN, "cluster.hours=30"), r"hours: 30, but booster allow at most 24 for 128"),
        ((*TEUKEN, "cluster.hours=0.1"), r"360 seconds, but one step and checkpoint can take"),
        ((*TEUKEN, "site.queue=develbooster"), r"128 nodes: develbooster 1 to 4"),
        ((*TEUKEN, "site.queue=mine"), r"cluster\.hours: the profile of juwels has no limit"),
        (
            (*TEUKEN, SMOKE, "cluster.site.spare_seconds=1_800"),
            r"1,800 seconds, but one step and .*\n  remove cluster\.smoke, or set",
        ),
        (
            ("recipe=teuken7b", "cluster=jean_zay"),
            r"no queue of jean_zay takes 64 nodes.*\n  cut to 52 \(qos_gpu_a100-t3, 20 h\)",
        ),
        (
            (*BLOOM, "cluster.hours=100"),
            r"qos_gpu_a100-t3 allow at most 20 .*\n.*by request \(.*\), site\.queue=qos_gpu-gc",
        ),
        ((*AURORA64, "cluster.jobs=3"), r"cluster\.jobs: 3, but .*\n  set cluster\.jobs=1; "),
        ((*DEV, "cluster.jobs=11"), r"11 jobs are submitted in 2 chains.*\n.*jobs=10; "),
        ((*TEUKEN, "run=/a folder"), r"run: '/a folder' is not allowed in a job script"),
        ((*SMNG, "site.image=/b.sif"), r"site\.image: /b\.sif, but the profile does not"),
        (("recipe=teuken7b", SMOKE), r"cluster\.smoke: local has no scheduler"),
        ((*SMNG, SMOKE), r"smoke: two nodes have 16 ranks, but one replica needs 128"),
    ],
)
def test_impossible_job_is_refused_with_a_remedy(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        job_of(*words)


def test_one_new_file_adds_a_cluster(monkeypatch: Patch, tmp_path: Path) -> None:
    for folder in ("conf", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    profiles = tmp_path / "conf" / "cluster"
    profile = yaml.safe_load((profiles / "aurora.yaml").read_text("utf-8"))
    queue = {"name": "batch", "fewest_nodes": 1, "most_nodes": 500, "longest_hours": 6.0}
    profile |= {"name": "new_site", "devices_per_node": 6, "queues": [queue]}
    profile["site"]["node_resources"] = "ncpus=42:ngpus=6"
    profile["site"]["binding"]["cores"] = "depth"
    (profiles / "new_site.yaml").write_text(yaml.safe_dump(profile), "utf-8")
    monkeypatch.setattr(trusted_paths, "CLONE", tmp_path)
    words = ("recipe=mula1b", "cluster=new_site", "parallelism.data=192")
    recipe = recipe_of(*words)
    assert (recipe.cluster.nodes, recipe.cluster.devices_per_node) == (32, 6)
    assert plan_recipe(recipe).cost_estimate is not None
    directives = read_directives(script_of(*words))
    assert directives["-l"][:1] == ["select=32:ncpus=42:ngpus=6"]
    assert directives["-q"] == ["batch"]


def test_recipe_has_nothing_of_the_user() -> None:
    words = (*TEUKEN, "site.account=secret", "site.mail=me@x.org")
    recipe = recipe_of(*words)
    assert recipe == recipe_of(*TEUKEN)  # composed apart
    assert "secret" not in recipe.model_dump_json()
    whole = recipe_of("recipe=teuken7b", "scale=full")
    assert compute_fingerprint(recipe) == compute_fingerprint(whole)
    assert "#SBATCH --account=secret\n" in script_of(*words)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")


def test_each_cluster_has_its_section_and_the_command_line_wins(site_file: Path) -> None:
    assert read_user("juwels", {}) == User()
    write(site_file, "juwels: {account: mine, mail: me@x.org}\naurora: {venv: /a}\n")
    assert read_user("juwels", {}) == User(account="mine", mail="me@x.org")
    assert read_user("juwels", {"account": "third"}) == User(account="third", mail="me@x.org")
    assert read_user("aurora", {"image": "/b.sif"}) == User(image="/b.sif")
    assert read_user("hopper", {}) == User()


def test_file_is_below_the_home_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".config/kochbuch/site.yaml", "juwels: {account: mine}\n")
    assert read_user("juwels", {}).account == "mine"
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    user = read_user("juwels", {"runs": "$SCRATCH/runs", "venv": "~/venv"})
    assert (user.runs, user.venv) == ("/scratch/me/runs", f"{tmp_path}/venv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("juwels: [account]", r"site.yaml: juwels: \['account'\] is not a mapping"),
        ("- juwels", r"site.yaml: \['juwels'\] is not a mapping"),
        ("juwels: {acount: x}", r"juwels\.acount: unknown key\n  did you mean account\?"),
        ("juwels: {account: 12}", r"juwels\.account: expected a string, got 12"),
        ("juwels: {venv: /a, image: /b}", "an image .* and a virtual environment"),
        ("juwels: {account: [", "cannot be read: while parsing"),
        ("[" * 600, "cannot be read: maximum recursion depth exceeded"),
        ("juwels: {device_hours: .nan}", "device_hours: expected a number of hours"),
        (None, "cannot be read: not a regular file"),  # a pipe holds nobody up
    ],
)
def test_wrong_file_is_refused(text: str | None, message: str, site_file: Path) -> None:
    if text is None:
        site_file.parent.mkdir(parents=True)
        os.mkfifo(site_file)
    else:
        write(site_file, text)
    with pytest.raises(RecipeError, match=message):
        read_user("juwels", {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"acount": "x"}, r"site\.acount: unknown key\n  did you mean account\?"),
        ({"account": "a; rm -rf x"}, "is not allowed in a job script"),
        ({"account": "a\n#SBATCH --x"}, "is not allowed in a job script"),
        ({"runs": "$NOWHERE/runs"}, "is not allowed in a job script"),
        ({"venv": "~nobody_here/venv"}, "'~nobody_here/venv' is not allowed in a job script"),
        ({"runs": "runs"}, "'runs' is not an absolute path"),
        ({"venv": "/a", "image": "/b"}, r"site\.image: an image \(/b\) and"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_user("juwels", words)


def test_missing_setting_is_named_with_its_file_and_line(site_file: Path) -> None:
    text = str(missing_setting_error("account", "juwels", "jobs are billed"))
    assert text.startswith("site.account: not set, and jobs are billed")
    assert f"{site_file}:\n    juwels:\n      account: ..." in text
    assert "site.account=..." in text
