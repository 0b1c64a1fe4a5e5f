"""Study journal: Optuna's records, checked before Optuna applies them.

A study folder can come from elsewhere, and parameters in its journal become keys of a recipe.
Therefore each record must belong to this study, and each parameter to its search space.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    distribution_to_json,
)
from optuna.storages.journal import BaseJournalBackend

from command.study.schema import Interval, SearchStudy, ValueList, as_scalar
from components.errors import RecipeError
from components.json_file import MOST_BYTES, parse_json

REMEDY = "move the file away to restart the search; finished runs are not repeated"
SAMPLER_NOTE = 9  # the samplers in use never read it
# The fields of each kind of record by op_code, without op_code and worker_id.
FIELDS: Mapping[int, frozenset[str]] = {
    0: frozenset({"study_name", "directions"}),
    2: frozenset({"study_id", "user_attr"}),
    4: frozenset({"study_id", "datetime_start"}),
    5: frozenset({"trial_id", "param_name", "param_value_internal", "distribution"}),
    6: frozenset({"trial_id", "state", "values", "datetime_complete"}),
    SAMPLER_NOTE: frozenset({"trial_id", "system_attr"}),
}


def distribution_of(values: ValueList | Interval) -> BaseDistribution:
    """Return Optuna's distribution for one key of a search space."""
    if isinstance(values, Interval):
        return FloatDistribution(values.low, values.high, log=values.log)
    return CategoricalDistribution([as_scalar(value) for value in values])


class StudyJournal(BaseJournalBackend):
    """Records of one study in ``file``. An incomplete last line is removed."""

    def __init__(self, file: Path, study: SearchStudy) -> None:
        """Create the file if it is missing; refuse links, special files and large files."""
        self._file, self._study = file, study
        self._records: list[Mapping[str, Any]] = []
        self._lines = self._bytes = self._trials = 0
        if os.path.lexists(file):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise RecipeError(str(file), "is not a regular file with one name", REMEDY)
            if status.st_size > MOST_BYTES:
                raise RecipeError(str(file), f"has more than {MOST_BYTES:,} bytes", REMEDY)
        with file.open("ab+") as stream:
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield records from a number on, including new records of other processes."""
        with self._file.open("rb") as stream:
            stream.seek(self._bytes)
            text = stream.read()
        for line in text[: text.rfind(b"\n") + 1].splitlines(keepends=True):
            self._lines, self._bytes = self._lines + 1, self._bytes + len(line)
            try:
                record = parse_json(line, finite=True)
                if not self._is_record(record):
                    raise ValueError("is not a record of this study and search space")
            except (ValueError, OverflowError) as error:
                raise RecipeError(f"{self._file}:{self._lines}", str(error), REMEDY) from None
            if record["op_code"] != SAMPLER_NOTE:
                self._records.append(record)
        yield from map(dict, self._records[log_number_from:])

    def append_logs(self, logs: Sequence[Mapping[str, Any]]) -> None:
        with self._file.open("ab") as stream:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_EX)
            stream.write(b"".join(json.dumps(log).encode() + b"\n" for log in logs))
            stream.flush()
            os.fsync(stream.fileno())

    def _is_record(self, record: object) -> bool:
        """Return whether this study can have written a record.

        Raises:
            ValueError: it has a malformed time.
            OverflowError: it has a time outside the calendar.
        """
        if not isinstance(record, dict) or type(code := record.get("op_code")) is not int:
            return False
        if {*record} != {"op_code", "worker_id", *FIELDS.get(code, ())}:
            return False
        for moment in {*record} & {"datetime_start", "datetime_complete"}:
            datetime.fromisoformat(str(record[moment])).astimezone()
        match record:
            case {"study_name": name, "directions": directions}:
                goal = 1 if self._study.objective.direction == "minimize" else 2
                return (name, directions) == (self._study.name, [goal])
            case {"study_id": 0, "user_attr": dict(notes)}:
                return [type(note) for note in notes.values()] == [str]
            case {"study_id": 0, "datetime_start": str()}:
                self._trials += 1
                return True
            case {"trial_id": int(trial), "param_name": str(key)}:
                return trial in range(self._trials) and self._is_inside(key, record)
            case {"trial_id": int(trial), "state": 1, "values": [int() | float()]} | {
                "trial_id": int(trial),
                "state": 2 | 3,
                "values": None,
            }:
                return trial in range(self._trials)
        return code == SAMPLER_NOTE

    def _is_inside(self, key: str, record: Mapping[str, Any]) -> bool:
        values, number = self._study.space.get(key), record["param_value_internal"]
        if values is None or type(number) not in {int, float}:
            return False
        if record["distribution"] != distribution_to_json(distribution_of(values)):
            return False
        if isinstance(values, Interval):
            return bool(values.low <= number <= values.high)
        return number in range(len(values))  # an index
