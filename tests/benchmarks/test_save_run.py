"""A run at full size becomes a row of the ledger; other runs are errors."""

import json
from pathlib import Path

import pytest

from benchmarks.ledger.proofs import MEASURED, read_proof
from benchmarks.ledger.save_run import main, row_of
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.errors import RecipeError

SHORT = "budget.total_tokens=41_943_040"
SECONDS = 4.5


def run_folder(folder: Path, *words: str, device: str = "cuda:0") -> Path:
    """Write the files of a run that the ledger reads."""
    recipe = compose_recipe(read_point(["recipe=teuken7b", *words]))
    tokens = recipe.budget.global_batch_tokens
    files = {
        "recipe": recipe.model_dump(mode="json"),
        "results": {
            "status": "finished",
            "device": device,
            "tokens_per_second": tokens / SECONDS,
            "peak_memory_bytes": 2**35,
        },
        "environment": {
            "started": "2027-03-01T10:00:00+00:00",
            "python": "3.11.7",
            "versions": {"torch": "2.13.0"},
            "processor": "AMD EPYC 7402",
            "cores": 48,
        },
    }
    for name, tree in files.items():
        (folder / f"{name}.json").write_text(json.dumps(tree))
    return folder


def test_a_row_of_a_run_has_its_machine_and_its_changed_keys(tmp_path: Path) -> None:
    row = row_of(run_folder(tmp_path, "cluster=juwels", SHORT))
    assert row["changed"] == ["budget.total_tokens"]
    assert (row["cluster"], row["ranks"], row["date"]) == ("juwels", 512, "2027-03-01")
    proof = read_proof(MEASURED, row)
    assert proof.is_valid
    assert proof.verdict == "4.5 s"
    where = "4.5 s per step on 512 ranks of juwels, 32.0 GiB peak of the first rank"
    assert proof.finding == f"{where}, with changed budget.total_tokens"


def test_a_measured_row_lists_few_of_many_changed_keys(tmp_path: Path) -> None:
    row = row_of(run_folder(tmp_path, "cluster=juwels")) | {"changed": list("abcdef")}
    assert read_proof(MEASURED, row).finding.endswith("with changed a, b, c, d and 2 more keys")


def test_a_miniature_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path)
    with pytest.raises(RecipeError, match=r"has scale=mini, but the ledger has only full size"):
        row_of(run)
    assert main([str(run)]) == 2
    assert "scale=full" in capsys.readouterr().err


def test_a_run_on_a_cpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="ran on a CPU"):
        row_of(run_folder(tmp_path, "cluster=juwels", device="cpu"))
