"""Profiles describe their site; a wrong word in one is refused with its path."""

from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Site
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]
PROFILES = {path.stem: path for path in sorted((ROOT / "conf" / "cluster").glob("*.yaml"))}
CLUSTERS = list(PROFILES)
BATCH = [
    name for name, path in PROFILES.items() if "\nscheduler: none\n" not in path.read_text()
]


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=mula1b", *words]))


@pytest.mark.parametrize("name", BATCH)
def test_a_batch_cluster_describes_its_site_and_every_variable_has_a_reason(name: str) -> None:
    cluster = composed(f"cluster={name}", "cluster.ranks=48").cluster
    assert isinstance(cluster.site, Site)
    assert (cluster.scheduler == "pbs") == (cluster.site.queue_option == "-q")
    assert all(variable.reason for variable in cluster.site.environment.values())
    assert cluster.queues or (cluster.site.queue and cluster.hours != "auto")
    cores = cluster.site.binding.cores or ""
    if cores.startswith("list:"):
        assert len(cores.split(":")) - 1 == cluster.devices_per_node


@pytest.mark.parametrize("name", BATCH)
def test_a_profile_names_its_sources_beside_its_site(name: str) -> None:
    text = (ROOT / "conf" / "cluster" / f"{name}.yaml").read_text("utf-8")
    site = text[text.index("\nsite:\n") :].splitlines()
    assert site[2].lstrip().startswith("# ")
    assert "github.com" in text or "http" in text


def test_the_user_s_own_machine_has_no_site() -> None:
    cluster = compose_recipe(read_point(["recipe=bloom560m"])).cluster
    assert (cluster.site, cluster.hours, cluster.jobs, cluster.smoke) == (
        "none",
        "auto",
        "auto",
        False,
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "cluster.site.modles=[a]",
            r"cluster\.site\.modles: unknown key\n  did you mean modules",
        ),
        ("cluster.site.spare_seconds=0", r"spare_seconds: input should be greater than 0"),
        ("cluster.site.environment.A={value: '1'}", r"environment\.A\.reason: missing"),
        ("cluster.site.queue_option=--queue", r"queue_option: input should be '--partition'"),
        ("cluster.hours=0", r"cluster\.hours"),
        ("cluster.jobs=0", r"cluster\.jobs"),
        ("cluster.smoke=1", r"cluster\.smoke: input should be a valid boolean"),
    ],
)
def test_a_wrong_word_is_refused_with_its_path(word: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        composed("cluster=juwels", "cluster.ranks=48", word)
