"""Node and job by the names that schedulers give them."""

import socket

import pytest

from components.run.event_log import job_name, node_name


@pytest.mark.parametrize(
    ("seen", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "80"}, "80"),
        (
            {"SLURM_JOB_ID": "80", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"},
            "77_3",
        ),
        ({"PBS_JOBID": "12.pbs-0001"}, "12.pbs-0001"),
    ],
)
def test_a_job_goes_by_its_schedulers_id(seen: dict[str, str], job: str | None) -> None:
    assert job_name(seen) == job


def test_a_node_goes_by_its_schedulers_name_or_by_its_own() -> None:
    assert node_name({"SLURMD_NODENAME": "jwb0001"}) == "jwb0001"
    assert node_name({}) == socket.gethostname()
