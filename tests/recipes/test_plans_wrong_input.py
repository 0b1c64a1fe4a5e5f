"""Wrong input of a plan: status 2, one message, nothing on standard output."""

import json

import pytest

from command.main import main

TEUKEN = ("recipe=teuken7b", "cluster=juwels", "action=plan")
PROFILE = "cluster.hardware"
INSIDE, ACROSS = (f"{where}.peak_gigabytes_per_second" for where in ("inside", "across"))
WRITTEN, BETWEEN = "storage.write_gigabytes_per_second", "failures.node_hours_between"
POWER = "electricity.power_usage_effectiveness"
POSITIVE = "input should be greater than 0"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cluster.nodes=0", "cluster.nodes: input should be greater than 0, got 0"),
        ("cluster.nodes=127", "are not a multiple of 127 data ranks"),
        ("parallelism.tensor=3", "parallelism.tensor: 3 does not divide"),
        ("parallelism.pipeline=64", "parallelism.pipeline: "),
        ("parallelism.context=3", "parallelism.context"),
        ("cluster.hardware=none", "cluster.hardware: there is no measured hardware profile"),
        ("cluster.hardware=some", "cluster.hardware: input should be 'none', got 'some'"),
        (f"{PROFILE}.memory_bytes=0", f"{PROFILE}.memory_bytes: {POSITIVE}, got 0"),
        (f"{PROFILE}.{INSIDE}=-1", f"{PROFILE}.{INSIDE}: {POSITIVE}, got -1"),
        (f"cluster.{WRITTEN}=0", f"cluster.{WRITTEN}: {POSITIVE}, got 0"),
        (f"cluster.{BETWEEN}=-5", f"cluster.{BETWEEN}: {POSITIVE}, got -5"),
        (f"cluster.{POWER}=0.9", f"cluster.{POWER}: input should be greater than or equal"),
        ("cluster.waiting_hours=-1", "cluster.waiting_hours: input should be greater"),
        ("checkpoint.every_tokens=0", f"checkpoint.every_tokens: {POSITIVE}, got 0"),
        ("cluster.storage.speed=3", "cluster.storage.speed: unknown key"),
    ],
)
def test_a_wrong_value_is_named_once(
    word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TEUKEN, word]) == 2
    seen = capsys.readouterr()
    assert message in seen.err
    assert seen.err.count("cluster.hardware") <= 1
    assert seen.out == ""


@pytest.mark.parametrize(
    ("word", "figure", "how"),
    [
        ("gemm_teraflops={}", "gemm_teraflops.bfloat16", "time torch.mm"),
        (f"{INSIDE}=null", INSIDE, "measure it with nccl-tests"),
        (f"{ACROSS}=null", ACROSS, "measure it with nccl-tests"),
    ],
)
def test_a_profile_without_a_needed_figure_leaves_memory_and_says_how_to_measure_it(
    word: str, figure: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TEUKEN, f"{PROFILE}.{word}", "output=json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    first = tree["missing"][0]
    assert first["figure"] == f"{PROFILE}.{figure}"
    assert first["remedy"].startswith(how)
    assert tree["memory"]["verdict"] == "fits"
    assert tree["time"]["step_seconds"] is None
    assert set(tree["bill"].values()) == {None}


def test_a_sweep_plans_its_legal_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *TEUKEN, "parallelism.tensor=2,3", "output=json"]) == 2
    seen = capsys.readouterr()
    assert json.loads(seen.out)["layout"]["tensor"] == 2
    assert "parallelism.tensor=3 output=json] parallelism.tensor: 3 does not" in seen.err
