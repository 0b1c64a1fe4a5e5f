"""Queue, hours, chain and environment of a job, and what has no job."""

import pytest

from cluster.job import MOST_JOBS
from components.config.fingerprint import compute_fingerprint
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from tests.cluster.jobs import CHECKOUT, job_of, recipe_of, script_of

TEUKEN = ("recipe=teuken7b", "cluster=juwels")


def test_a_chain_is_as_long_as_the_plan_s_upper_bound_says() -> None:
    job, plan = job_of(*TEUKEN), plan_recipe(recipe_of(*TEUKEN))
    assert plan.cost_estimate is not None
    longest = plan.cost_estimate.days * 24 * 3_600 * (1 + plan.error_fraction)
    useful = job.walltime_seconds - job.lead_seconds
    assert (job.jobs - 1) * useful < longest <= job.jobs * useful


def test_the_warning_leaves_time_for_a_step_and_a_checkpoint() -> None:
    slow, quick = job_of("recipe=gpt175b", "cluster=smng_p2"), job_of(*TEUKEN)
    assert slow.lead_seconds - 600 >= 120  # a step of two minutes
    assert quick.lead_seconds == 600 + 60


def test_a_run_of_minutes_asks_for_no_whole_day() -> None:
    job = job_of(*TEUKEN, "budget.total_tokens=419430400")
    assert (job.walltime, job.jobs) == ("02:00:00", 1)


def test_a_run_with_phases_has_a_job_more_for_each_border() -> None:
    short = (*TEUKEN, "budget.total_tokens=419430400")
    phases = "phases={long: {from_fraction: 0.5}, last: {from_fraction: 0.9}}"
    assert job_of(*short, phases).jobs == job_of(*short, phases).needed_jobs == 3
    blind = (*short, phases, "cluster.hardware.across.peak_gigabytes_per_second=null")
    job = job_of(*blind, "cluster.hardware.across.by_nodes=[]")
    assert (job.jobs, job.needed_jobs) == (3, None)


def test_the_queue_is_the_one_with_the_tightest_limit_that_is_not_for_debugging() -> None:
    words = ("recipe=mula1b", "cluster=aurora", "cluster.hours=1")
    assert job_of(*words).queue == "prod"  # small's route; debug-scaling would allow it too
    assert job_of(*words, "cluster.nodes=8").queue == "capacity"
    assert job_of(*words, "cluster.nodes=32").queue == "debug-scaling"  # nothing else takes 32


def test_the_user_s_queue_wins_and_its_limits_hold_where_they_are_known() -> None:
    assert job_of(*TEUKEN, "site.queue=mine", "cluster.hours=2").queue == "mine"
    with pytest.raises(RecipeError, match=r"128 nodes: develbooster 1 to 4"):
        job_of(*TEUKEN, "site.queue=develbooster")
    with pytest.raises(
        RecipeError, match=r"cluster\.hours: the profile of juwels has no limit"
    ):
        job_of(*TEUKEN, "site.queue=mine")


def test_a_smoke_job_is_short_on_two_nodes_of_the_debug_queue() -> None:
    job = job_of(*TEUKEN, "cluster.smoke=true")
    assert (job.nodes, job.queue, job.walltime, job.jobs) == (2, "develbooster", "00:30:00", 1)
    job = job_of("recipe=mula1b", "cluster=aurora", "cluster.smoke=true")
    assert (job.nodes, job.queue, job.walltime) == (2, "debug", "00:30:00")
    job = job_of("recipe=gpt3b6", "cluster=smng_p2", "cluster.smoke=true", "cluster.nodes=1")
    assert (job.nodes, job.queue, job.walltime) == (1, "general", "00:30:00")


def test_a_smoke_job_of_the_miniature_deals_the_recipe_s_layout_to_its_ranks() -> None:
    words = ("recipe=gpt175b", "cluster=smng_p2", "cluster.smoke=true", "scale=mini")
    recipe = recipe_of(*words)
    assert (recipe.cluster.nodes, recipe.cluster.ranks) == (2, 16)
    assert recipe.parallelism.tensor * recipe.parallelism.pipeline > 1


def test_the_chain_s_length_is_the_user_s_where_nobody_can_plan() -> None:
    words = ("recipe=lucie_7b", "cluster=jean_zay_h100")
    job = job_of(*words)
    assert job.jobs == 1
    assert job.notes[0].startswith("cluster.jobs: the plan lacks measurements")
    job = job_of(*words, "cluster.jobs=10")
    assert (job.jobs, job.notes) == (10, ())


def test_a_chain_that_no_array_holds_is_cut_and_said() -> None:
    job = job_of(*TEUKEN, "cluster.hours=1")
    assert job.jobs == MOST_JOBS
    assert "jobs, but an array has at most 1,000" in job.notes[0]


AURORA64 = (
    *("recipe=mula1b", "cluster=aurora", "parallelism.data=768"),
    "budget.global_batch_tokens=3145728",
)


def test_where_a_user_has_one_job_the_script_is_one_and_says_what_takes_a_chain() -> None:
    job = job_of(*AURORA64)
    assert (job.queue, job.jobs, job.walltime) == ("debug-scaling", 1, "01:00:00")
    assert job.needed_jobs is not None
    assert job.needed_jobs > 1
    (note,) = job.notes
    assert "for 17 to 255 nodes aurora has only debug-scaling, 1 h" in note
    assert note.endswith("cut to 16 (capacity, 168 h) or raise to 256 (prod, 12 h)")
    assert "qsub" not in script_of(*AURORA64)
    with pytest.raises(RecipeError, match=r"cluster\.jobs: 3, but .*\n  set cluster\.jobs=1; "):
        job_of(*AURORA64, "cluster.jobs=3")
    spare = job_of(*MULA16, "cluster.spare_nodes=1")
    assert (spare.nodes, spare.queue, spare.jobs) == (17, "debug-scaling", 1)


MULA16 = (
    *("recipe=mula1b", "cluster=aurora", "parallelism.data=192"),
    "budget.global_batch_tokens=786432",
)


def test_a_chain_is_an_array_of_no_more_jobs_than_a_user_may_have_submitted() -> None:
    words = ("recipe=bloom176b", "cluster=jean_zay", "scale=mini", "cluster.nodes=2")
    dev = (*words, "site.queue=qos_gpu_a100-dev")
    assert "#SBATCH --array=1-10%1\n" in script_of(*dev, "cluster.jobs=10")
    with pytest.raises(RecipeError, match=r"11 jobs are submitted in 2 chains.*\n.*jobs=10; "):
        job_of(*dev, "cluster.jobs=11")
    assert job_of(*dev, "cluster.jobs=4").runs_at_once == 2
    assert job_of(*MULA16).runs_at_once == 2  # on PBS a job and its successor, of five


def test_a_queue_adds_its_own_directives() -> None:
    queue = "{name: boost, fewest_nodes: 1, most_nodes: 936, longest_hours: 24.0"
    queue += ", options: ['--qos=large']}"
    script = script_of(*TEUKEN, f"cluster.queues=[{queue}]")
    assert "#SBATCH --partition=boost\n" in script
    assert "#SBATCH --qos=large\n" in script


def test_what_is_by_request_is_noted() -> None:
    (note,) = job_of(*TEUKEN, "cluster.spare_nodes=300").notes
    assert note == (
        "cluster.nodes: 428: largebooster is by request (arranged with JSC); "
        "without one: cut to 384 (booster, 24 h)"
    )


def test_an_account_carries_the_kind_of_device_where_a_site_wants_it() -> None:
    words = ("recipe=bloom176b", "cluster=jean_zay")
    assert job_of(*words).account == "<account>@a100"
    assert job_of(*words, "site.account=abc").account == "abc@a100"
    assert [error.path for error in job_of(*words).missing] == ["site.account"]
    with pytest.raises(
        RecipeError, match=r"site\.account: not set, and jean_zay requires an account"
    ):
        job_of(*words).check_complete()
    job_of(*words, "site.account=abc").check_complete()
    assert job_of("recipe=playbook1b", "cluster=hopper").account is None


def test_without_a_queue_in_the_profile_a_placeholder_stands_for_it() -> None:
    job = job_of("recipe=gpt3b6", "cluster=smng_p2", "cluster.site.queue=null")
    assert job.queue == "<queue>"
    assert [error.path for error in job.missing] == ["site.account", "site.queue"]


def test_python_comes_from_an_image_or_from_an_environment() -> None:
    assert (job_of(*TEUKEN).venv, job_of(*TEUKEN).python) == (f"{CHECKOUT}/.venv", "python")
    job = job_of(*TEUKEN, "site.image=/p/image.sif")
    assert (job.venv, job.python) == (None, "apptainer exec --nv /p/image.sif python")
    assert "activate" not in script_of(*TEUKEN, "site.image=/p/image.sif")


def test_an_image_is_copied_to_the_nodes_and_ranks_start_in_the_copy() -> None:
    words = (*TEUKEN, "cluster.imports=node_local", "site.image=/p/image.sif")
    script = script_of(*words)
    assert '-m cluster.copies "$run" /p/image.sif ||' in script
    own = '"${on_node[@]}" apptainer exec --nv "$node/image" python -m components.train "$run"'
    assert own in script
    first = "\n/path/to/kochbuch/.venv/bin/python -m cluster.begin"
    assert first in script
    looks = '"$node/image" python -m components.preflight "$run"'
    assert looks in script


def test_runs_are_where_the_user_keeps_them_or_says() -> None:
    assert job_of(*TEUKEN).run == f"{CHECKOUT}/runs/teuken7b-full"
    assert job_of(*TEUKEN, "site.runs=/scratch/runs").run == "/scratch/runs/teuken7b-full"
    assert job_of(*TEUKEN, "site.runs=/scratch/runs", "run=/other").run == "/other"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("recipe=teuken7b",),
            r"local has no scheduler, .*\n  set cluster=juwels, or train here with "
            r"action=train",
        ),
        ((*TEUKEN, "cluster.site=none"), r"cluster\.site: the profile of juwels does not"),
        (
            (*TEUKEN, "cluster.hours=30"),
            r"cluster\.hours: 30, but booster allow at most 24 for 128",
        ),
        ((*TEUKEN, "cluster.hours=0.1"), r"360 seconds, but one step and checkpoint can take"),
        (
            (*TEUKEN, "cluster.smoke=true", "cluster.site.spare_seconds=1_800"),
            r"1,800 seconds, but one step and .*\n  remove cluster\.smoke, or set",
        ),
        (
            ("recipe=teuken7b", "cluster=jean_zay"),
            r"no queue of jean_zay takes 64 nodes.*\n  cut to 52 \(qos_gpu_a100-t3, 20 h\)",
        ),
        (
            ("recipe=bloom176b", "cluster=jean_zay", "cluster.hours=100"),
            r"qos_gpu_a100-t3 allow at most 20 .*\n.*by request \(.*\), site\.queue=qos_gpu-gc",
        ),
        ((*TEUKEN, "run=/a folder"), r"run: '/a folder' is not allowed in a job script"),
        (
            ("recipe=gpt175b", "cluster=smng_p2", "site.image=/b.sif"),
            r"site\.image: /b\.sif, but the profile does not define",
        ),
        (("recipe=teuken7b", "cluster.smoke=true"), r"cluster\.smoke: local has no scheduler"),
        (
            ("recipe=gpt175b", "cluster=smng_p2", "cluster.smoke=true"),
            r"cluster\.smoke: two nodes have 16 ranks, but one replica needs 128",
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused_with_the_way_out(
    words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        job_of(*words)


def test_nothing_of_the_user_s_is_in_the_recipe() -> None:
    words = (*TEUKEN, "site.account=secret", "site.mail=me@x.org")
    recipe = recipe_of(*words)
    assert recipe == recipe_of(*TEUKEN)  # composed apart
    assert "secret" not in recipe.model_dump_json()
    assert compute_fingerprint(recipe) == compute_fingerprint(
        recipe_of("recipe=teuken7b", "scale=full")
    )
    assert "#SBATCH --account=secret\n" in script_of(*words)
