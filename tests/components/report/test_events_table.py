"""The story's table: an event a row, with the nodes on which it went on."""

from components.report.outcome import load_entries
from components.report.page import MOST_NAMED, events_grid
from tests.components.report.conftest import WriteRun, mark_line, step_line, write_history


def test_a_long_list_of_nodes_is_cut_and_counted(write_run: WriteRun) -> None:
    run, nodes = write_run(), [f"n{number}" for number in range(1_200)]
    write_history(
        run,
        [
            mark_line("start", 0, ranks=9_600, nodes=nodes, job="77_1"),
            step_line(1),
            mark_line("job_end", 1, nodes=nodes[:MOST_NAMED]),
        ],
    )
    start, over = events_grid(load_entries([run])[0]).rows
    assert start[2:4] == ("start", "due")
    assert start[-1] == (
        "ranks 9,600; nodes n0, n1, n2, n3, n4, n5, n6, n7 and 1,192 more; job 77_1"
    )
    assert over[2] == "job end"
    assert over[-1] == "nodes n0, n1, n2, n3, n4, n5, n6, n7"
