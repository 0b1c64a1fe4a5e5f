"""Accuracy of the planner on 1,506 measured layouts."""

import json
from pathlib import Path

import pytest

from benchmarks.planning.measured import assign_by_cost, read_rows
from benchmarks.planning.planner_accuracy import (
    MOST_TIME_ERROR,
    TABLE,
    main,
    predicted_ratios,
)
from command.card.reading import SCALED_ERRORS


def test_the_released_layouts_are_predicted_as_well_as_the_docs_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main()
    figures = json.loads(capsys.readouterr().out)
    ratios = {ratio.case: ratio for ratio in predicted_ratios()}
    assert sum(ratio.has_target for ratio in ratios.values()) == 4
    assert [case for case, ratio in ratios.items() if not ratio.met] == []
    memory = ratios["new layouts, memory"].value
    assert memory == pytest.approx(100 * figures["memory"]["median_error"])
    for nodes in ("1", "2"):
        assert figures["time"]["by_nodes"][nodes]["median_error"] <= MOST_TIME_ERROR
    scaled = figures["scaled"]  # what a site card's interval promises
    assert scaled["1"]["p90_error"] <= scaled["2"]["p90_error"] <= SCALED_ERRORS[2]
    assert SCALED_ERRORS[2] < scaled["8"]["p90_error"] <= SCALED_ERRORS[8]
    assert figures["rank"]["spearman_median"] >= figures["rank"]["paired_spearman_median"] > 0.8


def test_a_stage_takes_layers_until_it_exceeds_its_share_of_products() -> None:
    """Runs of the largest model logged these layers, from 20 bytes per parameter on stage 0."""
    rows = [row for row in read_rows(TABLE) if row.job.layout.pipeline == 4]
    large = next(row for row in rows if row.model == (32, 4_096))
    assert assign_by_cost(large.job.shape, 4) == ((9, 9, 8, 6), 3)


def test_a_crashed_run_is_excluded(tmp_path: Path) -> None:
    head, row = (line.split(",") for line in TABLE.read_text("utf-8").splitlines()[:2])
    row[head.index("status")] = "Other"
    file = tmp_path / "table.csv"
    file.write_text("\n".join([",".join(head), ",".join(row)]), "utf-8")
    assert read_rows(file) == []
