"""The tables of what was measured on a GPU are those of the kept results."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import page as pages
from benchmarks.gpu import predict
from benchmarks.gpu.cases import read_cases
from benchmarks.gpu.page import PAGE, page
from components.errors import RecipeError


def test_the_page_has_the_tables_of_today() -> None:
    text = PAGE.read_text("utf-8")
    assert page(text) == text, f"run {pages.WRITER}"


def test_a_case_stands_beside_its_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(one for one in read_cases() if predict.is_ours(one))
    found = {"tokens_per_second": 8192.0, "teraflops_full": 400.4, "teraflops_causal": 350.2}
    found |= {"peak_bytes": 2**34}
    result = {"device": "NVIDIA H100 80GB HBM3", "outcome": "finished", "found": found}
    ratio = {
        "found": {"ratio": {"median": 0.9, "low": 0.8, "high": 1.0}},
        "outcome": "finished",
    }
    (tmp_path / "gpu").mkdir()
    kept = {case.name: result, "turns-amp": {**ratio, "device": "NVIDIA H200"}}
    (tmp_path / "gpu" / "B.json").write_text(json.dumps(kept))
    told = {
        "words": case.settings["words"],
        "dryrun_tensor_bytes": 2**35,
        "plan_step_seconds": 4.0,
    }
    file = tmp_path / "predicted.json"
    file.write_text(json.dumps({case.name: {**told, "plan_peak_bytes": 2**33}}))
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "FILE", file)
    text = page(PAGE.read_text("utf-8"))
    row = f"| `{case.name}` | H100 | 8,192 | 4,096 | 400; 350 | 16.0 | 32.0 | 8.0 |  |  |\n"
    assert row in text
    row = "| `turns-amp` | H200 | ours, titan.TitanLlama:amp | 0.900 (0.800 to 1.000) |\n"
    assert row in text
    assert "On: NVIDIA H100 80GB HBM3, NVIDIA H200." in text


def test_predictions_want_a_profile() -> None:
    with pytest.raises(RecipeError, match="cluster: no profile is named"):
        predict.main([])
