"""A rank that fails in the loop: said once, by whom and why; the others end as well."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from components.data.order import Phase, SampleOrder
from tests.life.conftest import ROOT, TINY, Program

SHARES = {"eu": 0.991, "rare": 0.009}
SAMPLES_PER_STEP = 8
LONGEST_PREPARATION_SECONDS = 600
STEPS_BEFORE = 6  # before the second rank meets the rare source
WORDS = (
    *(word for word in TINY if not word.startswith(("data.sources", "data.shares"))),
    f"data.sources={{eu: {{files: ['{ROOT}/corpora/eu24/*.txt']}}, "
    f"rare: {{files: ['{ROOT}/corpora/eu24/d*.txt']}}}}",
    f"data.shares={{eu: {SHARES['eu']}, rare: {SHARES['rare']}}}",
    "cluster.ranks=2",
)


def remove(file: Path) -> None:
    file.unlink()


def spoil(file: Path) -> None:
    """Replace every token by one that no vocabulary has; the size stays."""
    np.full(file.stat().st_size // 2, 65_535, dtype="<u2").tofile(file)


def damage_data(run: Path, damage: Callable[[Path], None]) -> None:
    """Damage the rare source's tokens after they were checked, before a rank opens them.

    The folder of the ranks' logs is made by their agent, which starts after the last check.
    """
    last = time.monotonic() + LONGEST_PREPARATION_SECONDS
    while not (run / "ranks").exists():
        assert time.monotonic() < last
        time.sleep(0.02)
    data = Path(json.loads((run / "data.json").read_text())["folder"])
    manifest = json.loads((data / "manifest.json").read_text())
    damage(data / manifest["sources"]["rare"]["train"][0]["name"])


def test_the_rare_source_is_the_second_ranks_first() -> None:
    phase = Phase(first_sample=0, shares=SHARES, path="data.shares")
    order = SampleOrder(phases=[phase], samples={"eu": 500, "rare": 10}, seed=42)
    first = next(place for place in range(500) if order[place].source == "rare")
    assert first // SAMPLES_PER_STEP == STEPS_BEFORE
    assert first % SAMPLES_PER_STEP >= SAMPLES_PER_STEP // 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "damage", "status", "message"),
    [
        (
            "spoilt",
            spoil,
            2,
            "rank 1 failed first\n{data}/rare.train.tokens: has token id 65,535, but the v",
        ),
        pytest.param(
            "removed",
            remove,
            2,
            "rank 1 failed first\n{data}/rare.train.tokens: is missing, but",
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_first_rank_to_fail_is_named_once_and_all_end(
    home: Path,
    program: Program,
    name: str,
    damage: Callable[[Path], None],
    status: int,
    message: str,
) -> None:
    run = home / name
    with ThreadPoolExecutor(1) as beside:
        damaged = beside.submit(damage_data, run, damage)
        folder = f"data.folder={home / name}-data"
        err = program(*WORDS, folder, f"run={run}", status=status).stderr
        damaged.result()
    data = json.loads((run / "data.json").read_text())["folder"]
    assert message.format(data=data) in err
    assert err.count("failed first") == 1
    assert err.count("Traceback") == (1 if status == 1 else 0)
    journal = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(entry["kind"] == "step" for entry in journal) == STEPS_BEFORE
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
