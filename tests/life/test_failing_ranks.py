"""A rank that fails in the loop: said once, by whom and why; the others end as well."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.life.conftest import ROOT, Program, entries, tiny

LONGEST_PREPARATION_SECONDS = 600
STEPS_BEFORE = 6  # before the second rank meets the rare source
WORDS = tiny(
    f"data.sources={{eu: {{files: ['{ROOT}/corpora/eu24/*.txt']}}, "
    f"rare: {{files: ['{ROOT}/corpora/eu24/d*.txt']}}}}",
    "data.shares={eu: 0.991, rare: 0.009}",
    "cluster.ranks=2",
)


def spoil_data(run: Path) -> None:
    """Replace the rare source's tokens, after they were checked and before a rank opens them.

    The folder of the ranks' logs is made by their agent, which starts after the last check.
    """
    last = time.monotonic() + LONGEST_PREPARATION_SECONDS
    while not (run / "ranks").exists():
        assert time.monotonic() < last
        time.sleep(0.02)
    data = Path(json.loads((run / "data.json").read_text())["folder"])
    manifest = json.loads((data / "manifest.json").read_text())
    file = data / manifest["sources"]["rare"]["train"][0]["name"]
    np.full(file.stat().st_size // 2, 65_535, dtype="<u2").tofile(file)


@pytest.mark.long
def test_the_first_rank_to_fail_is_named_once_and_all_end(home: Path, program: Program) -> None:
    run = home / "run"
    with ThreadPoolExecutor(1) as beside:
        spoilt = beside.submit(spoil_data, run)
        folder = f"data.folder={home / 'data'}"
        err = program(*WORDS, folder, f"run={run}", status=2).stderr
        spoilt.result()
    data = json.loads((run / "data.json").read_text())["folder"]
    message = f"rank 1 failed first\n{data}/rare.train.tokens: has token id 65,535, but the v"
    assert message in err
    assert err.count("failed first") == 1
    assert "Traceback" not in err
    assert len(entries(run, "step")) == STEPS_BEFORE
    assert not (run / "results.json").exists()
    failure = json.loads((run / "ranks" / "first_failure.json").read_text())
    assert failure["rank"] == 1
    assert "Traceback" in failure["traceback"]
    assert processes_of(run) == []


def processes_of(run: Path) -> list[str]:
    """Find the processes of this machine that name the run on their command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(run) in words:
            found.append(words)
    return found
