"""What the pages for sites say holds for the sites as they are, before anything is changed."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.job import job_settings
from cluster.user import read_user
from command import arguments
from command.composition import compose
from command.files import trusted_paths
from tests.cluster.jobs import CHECKOUT, ROOT
from tests.cluster.site_page import CHANGES, calls, commands, tried

PAGES = sorted((ROOT / "docs" / "sites").glob("*.md"))
PUBLISHED = [
    page for page in PAGES if (ROOT / "conf/cluster" / page.name).with_suffix(".yaml").exists()
]
SECTIONS = (
    "What you need",
    "Your settings",
    "Data",
    "The first job",
    "After a failure",
    "Report",
    "Known problems",
    CHANGES.removeprefix("## "),
)
OWN = ("run=", "file=")
PROFILE = re.compile(r"^cat > (conf/cluster/\w+\.yaml) <<'END'\n(.*?)^END$", re.M | re.S)


def name_of(page: Path) -> str:
    return page.stem


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_has_its_sections_and_says_what_was_not_tried(page: Path) -> None:
    text = page.read_text("utf-8")
    places = [text.find(f"\n## {section}\n") for section in SECTIONS]
    if page not in PUBLISHED:  # one file says both what the machine is and who its user
        del places[SECTIONS.index("Your settings")]
    assert -1 not in places
    assert places == sorted(places)
    assert "\nNot tried: " in text[places[-1] :]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_change_of_a_page_leaves_a_script(page: Path) -> None:
    assert commands(page) != tried(page)
    subprocess.run(["bash", "-n", "-c", tried(page)], check=True)


@pytest.fixture
def add_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path], None]:
    """Write the profile that a page writes, if it does, into a copy of the configuration."""

    def add(page: Path) -> None:
        found = PROFILE.search(commands(page))
        if found is None:
            return
        for folder in ("conf", "recipes"):
            shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
        monkeypatch.setattr(trusted_paths, "CLONE", tmp_path)
        (tmp_path / found[1]).write_text(found[2], "utf-8")

    return add


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_submits_complete_jobs(page: Path, add_profile: Callable[[Path], None]) -> None:
    add_profile(page)
    scripts = [call for call in calls(page) if "action=" not in call or "=render" in call]
    assert len(scripts) == 3
    for call in scripts:
        words = [word for word in shlex.split(call)[2:] if not word.startswith(OWN)]
        recipe = compose.compose_recipe(arguments.read_point(words))
        user = read_user(recipe.cluster.name, {"account": "kitchen"})
        job = job_settings(recipe, user, repository=CHECKOUT, run=CHECKOUT / "runs")
        job.check_complete()
        assert job.nodes == 2 or "scale=mini" not in words
