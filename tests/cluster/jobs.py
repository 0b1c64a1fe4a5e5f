"""Jobs of recipes on clusters, as a user who has said a few things, or nothing, gets them."""

from functools import cache
from pathlib import Path

from benchmarks.recipes import published_recipes, recipe_tree
from cluster.chain import JobAttempt
from cluster.chain_events import (
    BeganEvent,
    CancelledEvent,
    EndedEvent,
    SubmitEvent,
    SubmittedEvent,
)
from cluster.job import JobSettings, job_settings, render, run_folder
from cluster.records import Jobs, now, saved_tokens
from cluster.user import read_user
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
RECIPES = published_recipes()
CHECKOUT = Path("/path/to/kochbuch")
IN_IMAGES = ("lumi", "alps")  # started by a command and by a file


def home_of(name: str) -> str:
    return str(recipe_tree(name)["home"])


@cache
def recipe_of(*words: str) -> Recipe:
    return compose_recipe(read_point(list(words)))


def job_of(*words: str, repository: Path = CHECKOUT) -> JobSettings:
    arguments = read_point(list(words))
    recipe = recipe_of(*(word for word in words if not word.startswith(("site.", "run="))))
    user = read_user(recipe.cluster.name, arguments.site)
    folder = run_folder(recipe, user, arguments.run, repository)
    return job_settings(recipe, user, repository=repository, run=folder)


def script_of(*words: str) -> str:
    return render(job_of(*words))


def scripts() -> dict[str, tuple[str, ...]]:
    """Name the golden scripts: recipes at home, one moved to PBS, copies, images, trees."""
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
        **{f"teuken7b-{name}": (moved[0], f"cluster={name}", image) for name in IN_IMAGES},
    }


def submitted(jobs: Jobs, chain: str, count: int = 4) -> None:
    """Record that a chain of ``count`` jobs was handed over."""
    jobs.note(
        SubmitEvent(at=now(), jobs=count, words=()), SubmittedEvent(at=now(), chain=chain)
    )


def cancelled(jobs: Jobs) -> None:
    jobs.note(CancelledEvent(at=now()))


def began(
    jobs: Jobs, job: str, *, attempt: int = 0, nodes: tuple[str, ...] = ("n1",)
) -> JobAttempt:
    """Record that a job begins where the run is."""
    saved = saved_tokens(jobs.folder)
    jobs.note(BeganEvent(at=now(), job=job, attempt=attempt, nodes=nodes, tokens=saved))
    return jobs.chain().attempts[-1]


def ended(
    jobs: Jobs, record: JobAttempt, how: str, *, why: str = "", bad: tuple[str, ...] = ()
) -> JobAttempt:
    """Record how an attempt ended, where the run is."""
    event = EndedEvent(
        at=now(),
        job=record.job,
        attempt=record.attempt,
        tokens=saved_tokens(jobs.folder),
        ended=how,
        why=why,
        bad_nodes=bad,
    )
    jobs.note(event)
    return jobs.chain().attempts[-1]
