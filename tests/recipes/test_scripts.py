"""The job script of every recipe at home: golden files, and what all of them keep.

The script of each scheduler without the lines of a site is whole. Each profile and each variant
has a file with the lines in which its script differs. The table has a row for each other
script, with a hash of its difference.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from cluster.job import JobSettings, render_job_script
from components.config.schema.cluster import QueueSection
from tests.cluster.directives import read_directives
from tests.cluster.jobs import ROOT, job_of, scripts
from tests.recipes.compositions import RECIPES, home_of
from tests.recipes.golden_files import Row, check_table, check_text

SCRIPTS = Path(__file__).parent / "scripts"
TABLE = SCRIPTS / "others.csv"
NAMES = scripts()
WHOLE = {"slurm": "teuken7b-juwels-bare", "pbs": "mula1b-aurora-bare"}
# The first script of each profile; the other scripts of the profile are compared with it.
OF_PROFILE = {home_of(name): f"{name}-{home_of(name)}" for name in reversed(RECIPES)}
OF_PROFILE |= {"aurora": "mula1b-aurora"}
VARIANTS = NAMES.keys() - {f"{name}-{home_of(name)}" for name in RECIPES}
DIFFERENT = sorted({*OF_PROFILE.values(), *VARIANTS} - {*WHOLE.values()})
OTHERS = sorted(NAMES.keys() - {*DIFFERENT, *WHOLE.values()})
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
    return render_job_script(job(name))


def base_of(name: str) -> str:
    """Return the script that another one is compared with."""
    of_profile = OF_PROFILE[name.split("-")[1]]
    return WHOLE[job(name).cluster.scheduler] if name == of_profile else of_profile


def general_lines(name: str) -> list[str]:
    """Return the lines of a script with RECIPE in place of the recipe's name."""
    return rendered(name).replace(name.partition("-")[0], "RECIPE").splitlines()


def list_hunks(base: Sequence[str], lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the lines removed and added, hunk by hunk.

    A removed line that is unique in the base locates a hunk; otherwise ``@N LINE`` does: the
    hunk begins N lines after the start of a unique line.
    """
    matcher = SequenceMatcher(None, base, lines, autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            continue
        hunk = [f"-{line}" for line in base[start:end]]
        hunk += [f"+{line}" for line in lines[first:last]]
        if start == end or base.count(base[start]) > 1:
            unique = (place for place in range(start) if base.count(base[place]) == 1)
            anchor = max(unique, default=start)
            hunk.insert(0, f"@{start - anchor} {base[anchor]}")
        yield hunk


@cache
def hunks(name: str) -> list[list[str]]:
    return list(list_hunks(general_lines(base_of(name)), general_lines(name)))


def other_row(name: str) -> Row:
    """Return the row of a script that differs little from another one of its profile."""
    text = "\n\n".join("\n".join(hunk) for hunk in hunks(name))
    return {
        "script": name,
        "like": base_of(name),
        "nodes": str(job(name).nodes),
        "walltime": job(name).walltime,
        "jobs": str(job(name).jobs),
        "changed_lines": str(
            sum(not line.startswith("@") for hunk in hunks(name) for line in hunk)
        ),
        "difference_hash": sha256(text.encode()).hexdigest()[:8],
    }


@pytest.mark.parametrize("name", WHOLE.values())
def test_the_script_is_its_golden_file(name: str) -> None:
    check_text(SCRIPTS / f"{name}.sh", rendered(name))


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_difference_of_a_script_is_its_golden_file(name: str) -> None:
    parts = [f"# compared with {base_of(name)}, RECIPE for the recipe's name"]
    parts += ["\n".join(hunk) for hunk in hunks(name)]
    check_text(SCRIPTS / f"{name}.diff", "\n\n".join(parts) + "\n")


def test_the_other_scripts_are_their_rows_of_the_golden_table() -> None:
    check_table(TABLE, list(map(other_row, OTHERS)), ["script"])


def test_no_script_is_left_without_its_recipe() -> None:
    expected = {f"{name}.sh" for name in WHOLE.values()}
    expected |= {f"{name}.diff" for name in DIFFERENT} | {TABLE.name}
    assert {file.name for file in SCRIPTS.iterdir()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_valid_bash_and_fits_on_a_page(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=rendered(name), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(rendered(name).splitlines()) < MOST_LINES
    assert not re.search(r"[ \t]$|\n\n\n|\n\n$", rendered(name), re.M)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed here")
def test_shellcheck_has_no_findings(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.sh" for name in NAMES]
    for file in files:
        file.write_text(rendered(file.stem), "utf-8")
    # SC1091: the environment that a script activates is on another machine.
    command = [str(SHELLCHECK), "--exclude=SC1091", *map(str, files)]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.stdout == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_directive_is_documented_and_matches_the_recipe(name: str) -> None:
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
