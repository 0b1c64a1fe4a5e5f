"""Jobs of recipes on clusters, and the records of their chains."""

import json
from collections.abc import Callable
from pathlib import Path

from cluster.chain import (
    BeganEvent,
    CancelledEvent,
    EndedEvent,
    JobAttempt,
    SubmitEvent,
    SubmittedEvent,
)
from cluster.job import JobSettings, job_settings, render_job_script, run_folder
from cluster.records import Jobs, saved_tokens, utc_now
from cluster.user import read_user
from command.arguments import read_point
from components.config.recipe import Recipe
from tests.cluster.programs import Programs, queued
from tests.recipes.compositions import RECIPES, compose, home_of

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = Path("/path/to/kochbuch")
# The templates without the settings of a site.
BARE = (
    *("cluster.site.directives=[]", "cluster.site.modules=[]", "cluster.site.setup=[]"),
    *("cluster.site.environment={}", "cluster.site.host_suffix=''"),
    *("cluster.site.proxy=null", "cluster.site.no_proxy=null"),
    *("cluster.site.binding.cores=null", "cluster.site.login_shell=false"),
)
IN_IMAGES = ("lumi", "alps")  # started by a command and by a file


def recipe_of(*words: str) -> Recipe:
    """Compose the recipe that the first word names."""
    return compose(words[0].removeprefix("recipe="), *words[1:])


def job_of(*words: str, repository: Path = CHECKOUT) -> JobSettings:
    arguments = read_point(list(words))
    recipe = recipe_of(*(word for word in words if not word.startswith(("site.", "run="))))
    user = read_user(recipe.cluster.name, arguments.site)
    folder = run_folder(recipe, user, arguments.run, repository)
    return job_settings(recipe, user, repository=repository, run=folder)


def script_of(*words: str) -> str:
    return render_job_script(job_of(*words))


def scripts() -> dict[str, tuple[str, ...]]:
    """Return the golden scripts by name: recipes on their own clusters, and a few variants."""
    at_home = {
        f"{name}-{home_of(name)}": (f"recipe={name}", f"cluster={home_of(name)}")
        for name in RECIPES
    }
    moved = ("recipe=teuken7b", "cluster=aurora", "parallelism.data=768")
    batch = "budget.global_batch_tokens=6291456"  # 1,536 sequences: 768 data ranks divide them
    smoke = ("recipe=teuken7b", "cluster=juwels", "cluster.smoke=true")
    copied = ("recipe=bloom176b", "cluster=jean_zay", "cluster.imports=node_local")
    copied_pbs = ("recipe=mula1b", "cluster=aurora", "cluster.imports=node_local")
    tree = "children.given={export: {}}"
    image = f"site.image={CHECKOUT}/image.sif"
    return at_home | {
        "teuken7b-aurora": (*moved, batch),
        "teuken7b-juwels-smoke": smoke,
        "bloom176b-jean_zay-copies": copied,
        "mula1b-aurora-copies": copied_pbs,
        "teuken7b-juwels-tree": (moved[0], "cluster=juwels", tree),
        "mula1b-aurora-tree": (*copied_pbs[:2], tree),
        "teuken7b-juwels-bare": (moved[0], "cluster=juwels", *BARE),
        "mula1b-aurora-bare": (*copied_pbs[:2], *BARE),
        **{f"teuken7b-{name}": (moved[0], f"cluster={name}", image) for name in IN_IMAGES},
    }


def submitted(jobs: Jobs, chain: str, count: int = 4) -> None:
    """Record that a chain of ``count`` jobs was submitted."""
    jobs.append_events(
        SubmitEvent(at=utc_now(), jobs=count, words=()),
        SubmittedEvent(at=utc_now(), chain=chain),
    )


def cancelled(jobs: Jobs) -> None:
    jobs.append_events(CancelledEvent(at=utc_now()))


def began(
    jobs: Jobs, job: str, *, attempt: int = 0, nodes: tuple[str, ...] = ("n1",)
) -> JobAttempt:
    """Record that a job begins at the run's last checkpoint."""
    saved = saved_tokens(jobs.folder)
    jobs.append_events(
        BeganEvent(at=utc_now(), job=job, attempt=attempt, nodes=nodes, tokens=saved)
    )
    return jobs.load_chain().attempts[-1]


def ended(
    jobs: Jobs, record: JobAttempt, how: str, *, why: str = "", bad: tuple[str, ...] = ()
) -> JobAttempt:
    """Record how an attempt ended, at the run's last checkpoint."""
    event = EndedEvent(
        at=utc_now(),
        job=record.job,
        attempt=record.attempt,
        tokens=saved_tokens(jobs.folder),
        ended=how,
        why=why,
        bad_nodes=bad,
    )
    jobs.append_events(event)
    return jobs.load_chain().attempts[-1]


NODES = tuple(f"jwb{number:04d}" for number in range(1, 129))
Run = Callable[..., Jobs]


def task(number: int, *, restarts: int = 0) -> dict[str, str]:
    """Return Slurm's variables in a task of the array 77."""
    return {
        "SLURM_JOB_ID": str(80 + number),
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_ARRAY_TASK_ID": str(number),
        "SLURM_JOB_NODELIST": "jwb[0001-0128]",
        "SLURM_RESTART_COUNT": str(restarts),
    }


def waiting_chain(run_on: Run, programs: Programs) -> Jobs:
    """Submit a chain of four jobs on 128 nodes of JUWELS to a scheduler of small programs."""
    programs.add("scontrol", says="\n".join(NODES))
    for name in ("scancel", "srun", "sinfo"):
        programs.add(name)
    jobs = run_on("juwels")
    programs.add("squeue", says=queued(jobs.path, "77_4|PENDING|Dependency|"))
    submitted(jobs, "77", 4)
    return jobs


def save(jobs: Jobs, tokens: int) -> None:
    folder = jobs.folder.checkpoints / f"tokens-{tokens:015d}"
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"tokens": tokens}))


def finish(jobs: Jobs, status: str) -> None:
    jobs.folder.write_json("results.json", {"status": status})


def fail(jobs: Jobs, rank: int, message: str) -> None:
    (jobs.folder.path / "ranks" / f"error-{rank}.json").write_text(
        json.dumps({"message": message})
    )
