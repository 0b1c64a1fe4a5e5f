"""Text to Megatron's files, and a run on them beside compressed text, through two phases."""

import gzip
import json
from pathlib import Path

import pytest

from tests.life.conftest import ROOT, TINY, act

WORDS = [word for word in TINY if not word.startswith(("data.sources", "data.shares"))]
TEXT = f"data.sources={{eu: {{files: ['{ROOT}/corpora/eu24/*.txt']}}}}"


@pytest.mark.long
def test_a_run_reads_megatron_files_and_packed_text(home: Path) -> None:
    prepare = (*WORDS, TEXT, "data.shares={eu: 1.0}", "action=prepare")
    assert act(home, *prepare, "data.write_megatron=true") == 0
    (prepared,) = (home / "prepared").glob("[!.]*/")
    assert (prepared / "eu.train.idx").is_file()
    german = (ROOT / "corpora" / "eu24" / "de.txt").read_text("utf-8")
    (home / "de.txt.gz").write_bytes(gzip.compress(german.encode()))
    words = (
        *WORDS,
        f"data.sources={{eu: {{tokens: ['{prepared}/eu.tr*']}}, de: {{files: [de.txt.gz]}}}}",
        f"data.tokenizer_folder={prepared}",
        *("data.mixture=natural", "data.shares={}"),
        "data.phases={end: {from_fraction: 0.75, shares: {de: 1.0}}}",
        "run=phases",
    )
    assert act(home, *words) == 0
    mixture = json.loads((home / "phases" / "results.json").read_text())["mixture"]
    assert abs(mixture["de"]["samples"] - 192 * mixture["de"]["promised_share"]) < 4
    assert 48 < mixture["de"]["samples"] < 192
    assert mixture["eu"]["samples"] + mixture["de"]["samples"] == 192
    manifest = json.loads(next((home / "prepared").glob("*/manifest.json")).read_text())
    assert manifest["format_version"] == 2
    assert "promised" in (home / "phases" / "report.html").read_text()
