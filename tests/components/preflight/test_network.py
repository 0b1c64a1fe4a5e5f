"""What would have to be fetched is named, and bad where it cannot be."""

import json
import subprocess
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.preflight.node_checks import check_network
from components.run.folder import RunFolder
from tests.cluster.staging.test_install import HAS_NAMESPACES, OFFLINE
from tests.life.conftest import ROOT, TINY, command, environment

HUB = "data.sources={eu: {dataset: {path: allenai/c4, split: train}}}"
JUWELS = (
    *("cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1"),
    "cluster.site.internet=false",
)
REST = tuple(word for word in TINY if not word.startswith("data.sources"))


def compose(*words: str) -> Recipe:
    return compose_recipe(read_point([*REST, *words]))


def test_a_dataset_of_the_hub_cannot_be_fetched_without_a_network(
    folder: RunFolder,
) -> None:
    found = check_network(compose(HUB, *JUWELS), folder, {})
    assert (found.verdict, found.found) == ("bad", "allenai/c4 would be fetched")
    assert found.expected == "nothing fetched: cluster.site.internet=false"


@pytest.mark.parametrize("value", ["1", "true", "ON"])
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_nor_can_it_where_the_environment_forbids_it(
    name: str, value: str, folder: RunFolder
) -> None:
    found = check_network(compose(HUB), folder, {name: value})
    assert (found.verdict, found.expected) == ("bad", f"nothing fetched: {name}={value}")


@pytest.mark.parametrize("seen", [{}, {"HF_HUB_OFFLINE": "0"}])
def test_where_nobody_says_that_there_is_no_network_nobody_knows(
    seen: dict[str, str], folder: RunFolder
) -> None:
    assert check_network(compose(HUB), folder, seen).verdict == "unknown"


def test_what_is_prepared_or_a_folder_here_needs_no_network(folder: RunFolder) -> None:
    local = HUB.replace("allenai/c4", f"{ROOT}/corpora/eu24")
    offline = {"HF_HUB_OFFLINE": "1"}
    assert check_network(compose(local), folder, offline).verdict == "ok"
    folder.write_json("data.json", {})
    found = check_network(compose(HUB), folder, offline)
    assert (found.verdict, found.found) == ("ok", "nothing is fetched")


@pytest.mark.long
@pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here")
def test_no_check_asks_for_anything_over_the_network(tmp_path: Path) -> None:
    words = [*OFFLINE, *command(*TINY, "action=preflight", "output=json")]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    (node,) = json.loads(done.stdout)["nodes"]
    verdicts = {one["check"]: one["verdict"] for one in node["findings"]}
    assert {"devices", "product", "data", "network"} < set(verdicts)
    # Which versions are installed here is no matter of a network.
    assert [check for check in verdicts if verdicts[check] == "bad"] in ([], ["packages"])
