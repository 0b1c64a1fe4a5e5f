"""Four ranks meet a kill, a hang and a flipped bit; the run ends as if nothing had been."""

import json
from pathlib import Path

import pytest

from tests.life.conftest import act, check_same_bits, entries, tiny

pytestmark = pytest.mark.long

STEPS, STEP_SECONDS = 8, 2.0
WORDS = (
    f"budget.total_tokens={STEPS * 512}",
    f"checkpoint.every_tokens={2 * 512}",
    f"evaluation.every_tokens={STEPS * 512}",
    "evaluation.max_windows_per_source=4",
    "parallelism.microbatch_sequences=2",
    "parallelism.tensor=2",
    "parallelism.data=2",
    "cluster.ranks=4",
    f"watchdog.step_seconds={STEP_SECONDS}",
    "watchdog.every_steps=2",
)
FAULTS = (
    "guard.inject=[{fault: kill, rank: 1, step: 4}, "
    "{fault: hang, rank: 2, step: 6, how: sleeps}, {fault: bit_flip, rank: 3, step: 8, bit: 7}]"
)


def train(home: Path, name: str, *words: str, status: int = 0) -> Path:
    assert act(home, *tiny(*WORDS, *words), f"run={name}") == status
    return home / name


@pytest.fixture(scope="module")
def struck(home: Path) -> Path:
    return train(
        home, "struck", FAULTS, "watchdog.restarts=3", "watchdog.replicas_every_steps=1"
    )


def test_a_run_with_faults_has_the_bits_of_an_undisturbed_run(home: Path, struck: Path) -> None:
    check_same_bits(struck, train(home, "undisturbed"))


def test_restart_events_name_their_cause(struck: Path) -> None:
    killed, hung, flipped = entries(struck, "restart")
    silent = killed["evidence"]["without_a_word"]
    assert 1 in silent  # the agent may end others before they say that they lost it
    assert killed["cause"].startswith(f"rank {', '.join(map(str, silent))} left no message; ")
    assert hung["cause"].startswith("rank 2: Hang: step 6 took more than 2 s; rank 2 on ")
    assert flipped["cause"].startswith("rank ")
    assert "ReplicasDifferError: in step 8 embedding.weight differs" in flipped["cause"]
    assert [event["step"] for event in (killed, hung, flipped)] == [2, 4, 6]
    assert all(event["seconds"] > 0.1 for event in (hung, flipped))
    (difference,) = entries(struck, "replicas")
    assert difference["evidence"] == {"weights": ["embedding.weight"], "ranks": [1, 3]}


def test_a_hang_is_detected_in_time_with_its_rank(struck: Path) -> None:
    fired = next(
        event for event in entries(struck, "rehearsal") if event["evidence"]["fault"] == "hang"
    )
    found = entries(struck, "hang")
    assert {
        event["evidence"]["rank"] for event in found if not event["evidence"]["waits_in"]
    } == {2}
    assert all(event["time"] - fired["time"] < STEP_SECONDS + 2 for event in found)
    reports = {file.stem for file in (struck / "hangs" / "step-6").iterdir()}
    assert reports == {f"rank-{rank}" for rank in range(4)}
    report = json.loads((struck / "hangs" / "step-6" / "rank-0.json").read_text())
    assert report["waits_in"].startswith("gloo:")
    assert len(report["collectives"]["entries"]) > 10


def test_an_error_for_the_user_ends_the_run_without_a_restart(home, capfd):
    """The fault strikes once: ranks that trained again would come to the end."""
    fault = "guard.inject=[{fault: truncated_checkpoint, rank: 1, step: 1}]"
    two = ("parallelism.tensor=1", "cluster.ranks=2", "watchdog.restarts=1")
    run = train(home, "refused", fault, *two, status=2)
    assert "inject the fault after the first checkpoint" in capfd.readouterr().err
    assert [event["kind"] for event in entries(run, "restart")] == []
