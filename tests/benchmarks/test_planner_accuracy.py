"""The planner against 1,506 measured layouts, and what a broken table is told."""

import json
from pathlib import Path

import pytest

from benchmarks.planning.measured import cut_by_cost, read_rows
from benchmarks.planning.planner_accuracy import (
    MOST_TIME_ERROR,
    TABLE,
    main,
    predicted_ratios,
    ranks,
    spearman,
)
from components.errors import RecipeError


def test_the_released_layouts_are_predicted_as_well_as_the_docs_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--measured", str(TABLE)])
    seen = json.loads(capsys.readouterr().out)
    ratios = {ratio.case: ratio for ratio in predicted_ratios()}
    assert sum(ratio.has_target for ratio in ratios.values()) == 4
    assert [case for case, ratio in ratios.items() if not ratio.met] == []
    memory = ratios["new layouts, memory"].value
    assert memory == pytest.approx(100 * seen["memory"]["median_error"])
    for nodes in ("1", "2"):
        assert seen["time"]["by_nodes"][nodes]["median_error"] <= MOST_TIME_ERROR
    assert seen["rank"]["spearman_median"] >= seen["rank"]["paired_spearman_median"] > 0.8


def test_a_stage_takes_layers_until_its_share_of_the_products_is_passed() -> None:
    """The parameters that runs of the largest model logged lie at 20 bytes each on stage 0."""
    rows = [row for row in read_rows(TABLE) if row.job.layout.pipeline == 4]
    large = next(row for row in rows if row.model == (32, 4_096))
    assert cut_by_cost(large.job.shape, 4) == ((9, 9, 8, 6), 3)


def test_equal_orders_correlate_and_ties_share_their_rank() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 40.0]) == 1
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1
    assert spearman([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]) == 0
    assert ranks([5.0, 5.0, 1.0]) == [1.5, 1.5, 0.0]


def changed(folder: Path, column: str, value: str) -> Path:
    """Write the head and one row of the table with one value replaced."""
    head, row = (line.split(",") for line in TABLE.read_text("utf-8").splitlines()[:2])
    row[head.index(column)] = value
    file = folder / "table.csv"
    file.write_text("\n".join([",".join(head), ",".join(row)]), "utf-8")
    return file


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("micro_batch", "0", r"table.csv:2: micro_batch '0' is no positive number"),
        ("reserved_gib", "nan", r"reserved_gib 'nan' is no positive number"),
        ("tokens_per_second_per_gpu", "fast", r"'fast' is no positive number"),
        ("tp", "1.5", r"tp '1.5' is no whole number"),
        ("nodes", "3", r"dp x tp x pp = 8 ranks on 3 nodes"),
        ("zero_stage", "3", r"zero_stage '3' was not measured"),
        ("kv_heads", "many", r"table.csv:2: kv_heads 'many' is no positive number"),
        ("kv_heads", "3", r"num_heads 32 does not divide into 3 equal parts"),
        ("num_heads", "7", r"dim 2048 does not divide into 7 equal parts"),
        (
            "tied_embeddings",
            "maybe",
            r"tied_embeddings 'maybe' is no flag\n  use True or False",
        ),
        ("newer_pipeline_code", "", r"newer_pipeline_code '' is no flag"),
        ("reserved_gib", "81", r"reserved_gib 81 on devices of 80 GiB"),
        ("tokens_per_second_per_gpu", "1e6", r"1e\+06 are [\d,]+ TFLOP/s a device, more than"),
    ],
)
def test_an_impossible_value_names_its_line(
    tmp_path: Path, column: str, value: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        read_rows(changed(tmp_path, column, value))


@pytest.mark.parametrize(("cells", "which"), [("1,2,3", "fewer"), ("1," * 99, "more")])
def test_a_row_of_another_length_names_its_line(tmp_path: Path, cells: str, which: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text(f"{TABLE.read_text('utf-8').splitlines()[0]}\n{cells}\n", "utf-8")
    with pytest.raises(RecipeError, match=f"table.csv:2: {which} cells than the head has"):
        read_rows(file)


def test_a_table_without_a_run_that_says_anything_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RecipeError, match=r"no row ended in Success or OOM\n  measure one"):
        main(["--measured", str(changed(tmp_path, "status", "Other"))])
    assert capsys.readouterr().out == ""


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_bytes(bytes(range(128, 256)))
    with pytest.raises(RecipeError, match=r"cannot be read: .*\n  give --measured a CSV file"):
        read_rows(file)


def test_a_run_that_crashed_is_left_out(tmp_path: Path) -> None:
    assert read_rows(changed(tmp_path, "status", "Other")) == []


def test_missing_columns_are_named(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("dp,tp\n1,1\n", "utf-8")
    with pytest.raises(RecipeError, match="the columns pp, grad_accumulation"):
        main(["--measured", str(file)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        read_rows(tmp_path / "nothing.csv")
