"""The job script of every recipe at home: golden files, and what all of them keep."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from cluster.job import JobSettings, render
from components.config.schema.cluster import QueueSection
from tests.cluster.directives import read_directives
from tests.cluster.jobs import ROOT, job_of, scripts

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = scripts()
MOST_LINES = 93  # 10 are a tree's, 24 Aurora's variables
SHELLCHECK = shutil.which("shellcheck")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@cache
def job(name: str) -> JobSettings:
    return job_of(*NAMES[name])


@cache
def rendered(name: str) -> str:
    return render(job(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_script_is_its_golden_file(name: str) -> None:
    file = SCRIPTS / f"{name}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        SCRIPTS.mkdir(exist_ok=True)
        file.write_text(rendered(name), "utf-8")
    assert file.read_text("utf-8") == rendered(name), "read the difference, then `make golden`"


def test_no_script_is_left_without_its_recipe() -> None:
    assert {file.stem for file in SCRIPTS.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_bash_reads_every_script_and_it_fits_on_a_page(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=rendered(name), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(rendered(name).splitlines()) < MOST_LINES
    assert not re.search(r"[ \t]$|\n\n\n|\n\n$", rendered(name), re.M)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed here")
def test_shellcheck_finds_nothing_to_say() -> None:
    files = [str(SCRIPTS / f"{name}.sh") for name in NAMES]
    # SC1091: the environment that a script activates is on another machine.
    command = [str(SHELLCHECK), "--exclude=SC1091", *files]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_directive_is_documented_and_asks_for_what_the_recipe_needs(name: str) -> None:
    found, asked = read_directives(rendered(name)), job(name)
    if asked.cluster.scheduler == "slurm":
        assert found["--nodes"] == [str(asked.nodes)]
        assert found["--ntasks-per-node"] == [str(asked.cluster.devices_per_node)]
        assert found["--time"] == [asked.walltime]
        assert ("--array" in found) == (asked.jobs > 1)
        assert found["--signal"] == [f"B:USR1@{asked.lead_seconds}"]
    else:
        assert f"select={asked.nodes}" in found["-l"]
        assert f"walltime={asked.walltime}" in found["-l"]
        each = asked.cluster.devices_per_node
        assert f"-n $((nodes * {each})) --ppn {each} --hostfile " in rendered(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_script_names_a_person_an_account_or_this_machine(name: str) -> None:
    text = rendered(name)
    assert str(ROOT) not in text
    paths = set(re.findall(r"(?<![\w$])/(?:[\w.-]+/)+[\w.-]*", text))
    ours = {path for path in paths if path.startswith("/path/to/kochbuch")}
    sites = {"//proxy.alcf.anl.gov", "/appl/local/laifs/modules", "/dev/aperture_devices"}
    ours |= {path for path in paths if path.startswith("/var/lib/tcpxo/lib64")}
    nodes = {"/tmp/kochbuch-", "/mnt/localssd/kochbuch-"}
    assert paths - ours <= {"/bin/bash", "/dev/null", *nodes, *sites}
    if "account" in text:
        assert "<account>" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_its_reason_on_its_line(name: str) -> None:
    for line in rendered(name).splitlines():
        if line.startswith("export ") and "MASTER" not in line:
            assert re.search(r"  # \S.+", line), line


def test_the_queues_of_a_profile_keep_their_new_fields_optional() -> None:
    queue = QueueSection(name="q", fewest_nodes=1, most_nodes=2, longest_hours=1.0)
    assert (queue.debug, queue.route) == (False, None)
