"""The tables of measurements on GPUs contain the stored results."""

import json
import re

import pytest

from benchmarks.gpu import page as pages
from benchmarks.gpu import predict
from benchmarks.gpu.cases import read_cases
from benchmarks.gpu.page import PAGE, render_page
from command.arguments import ROOT
from components.errors import RecipeError


def test_the_page_has_the_tables_of_today() -> None:
    text = PAGE.read_text("utf-8")
    assert render_page(text) == text, f"run {pages.WRITER}"


def test_a_row_has_a_measurement_and_its_prediction(tmp_path, monkeypatch):
    case = next(case for case in read_cases() if predict.is_ours(case))
    figures = {"tokens_per_second": 8192.0, "teraflops_full": 400.4, "teraflops_causal": 350.2}
    figures |= {"peak_bytes": 2**34}
    result = {"device": "NVIDIA H100 80GB HBM3", "outcome": "finished", "found": figures}
    ratio = {
        "found": {"ratio": {"median": 0.9, "low": 0.8, "high": 1.0}},
        "outcome": "finished",
    }
    (tmp_path / "gpu").mkdir()
    results = {case.name: result, "turns-amp": {**ratio, "device": "NVIDIA H200"}}
    (tmp_path / "gpu" / "B.json").write_text(json.dumps(results))
    prediction = {
        "words": case.settings["words"],
        "dryrun_tensor_bytes": 2**35,
        "plan_step_seconds": 4.0,
    }
    file = tmp_path / "predicted.json"
    file.write_text(json.dumps({case.name: {**prediction, "plan_peak_bytes": 2**33}}))
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "FILE", file)
    text = render_page(PAGE.read_text("utf-8"))
    row = f"| `{case.name}` | H100 | 8,192 | 4,096 | 400; 350 | 16.0 | 32.0 | 8.0 |  |  |\n"
    assert row in text
    row = "| `turns-amp` | H200 | ours, titan.TitanLlama:amp | 0.900 (0.800 to 1.000) |\n"
    assert row in text
    assert "Devices: NVIDIA H100 80GB HBM3, NVIDIA H200." in text


def test_predictions_need_a_cluster_profile() -> None:
    with pytest.raises(RecipeError, match="cluster: no cluster profile is given"):
        predict.main([])


def test_packages_for_a_gpu_machine_have_the_versions_of_the_locks() -> None:
    def pinned(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text("utf-8")
        return set(re.findall(r"^([\w.-]+==[^\s\\]+)", text, re.MULTILINE))

    locked = pinned("run.lock") | pinned("dev.lock") | pinned("fp8.lock")
    peers = {"docstring-parser", "torchdata", "torchtitan", "tyro"}  # no lock has these
    assert {text.partition("==")[0] for text in pinned("gpu.txt") - locked} == peers
