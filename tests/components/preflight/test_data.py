"""Data that are missing, cut, edited or another run's."""

from pathlib import Path

import pytest

from components.config.schema.cluster import Preflight
from components.data.files import FileRecord, record_file
from components.data.manifest import Manifest, TokenizerRecord
from components.preflight.node_checks import check_data, some_files
from components.run.folder import RunFolder
from tests.components.preflight.conftest import Compose


@pytest.fixture
def place(tmp_path: Path, folder: RunFolder) -> Path:
    """A prepared folder with two files, which the run's folder names."""
    place = tmp_path / "data"
    place.mkdir()
    for name in ("a.model", "b.model"):
        (place / name).write_bytes(name.encode() * 1_000)
    records = tuple(record_file(file) for file in sorted(place.iterdir()))
    tokenizer = TokenizerRecord(settings={}, files=records, vocab_size=2, eod_id=0)
    manifest = Manifest(key="k" * 64, tokenizer=tokenizer, held_out_fraction=0.1, sources={})
    manifest.save_manifest(place)
    folder.write_json("data.json", {"folder": str(place), "key": manifest.key})
    return place


def look(compose: Compose, rules: Preflight, folder: RunFolder) -> tuple[str, str]:
    found = check_data(compose(), rules, folder, "node1")
    return found.verdict, found.found


def test_untouched_data_are_good(
    compose: Compose, rules: Preflight, folder: RunFolder, place: Path
) -> None:
    said = "2 files by size, 2 of them by hash"
    assert look(compose, rules, folder) == ("ok", said)


def test_one_edited_byte_is_found_by_its_hash(
    compose: Compose, rules: Preflight, folder: RunFolder, place: Path
) -> None:
    text = bytearray((place / "b.model").read_bytes())
    text[7] ^= 1
    (place / "b.model").write_bytes(text)
    assert look(compose, rules, folder) == (
        "bad",
        "was changed: its sha256 is not the manifest's",
    )
    few = rules.model_copy(update={"hashed_bytes": 0})
    assert look(compose, few, folder)[0] == "ok"  # the sizes are right


def test_a_missing_file_is_found_though_nothing_is_hashed(
    compose: Compose, rules: Preflight, folder: RunFolder, place: Path
) -> None:
    (place / "a.model").unlink()
    few = rules.model_copy(update={"hashed_bytes": 0})
    assert look(compose, few, folder) == ("bad", "is missing, but the manifest lists it")


def test_data_of_another_run_are_bad(
    compose: Compose, rules: Preflight, folder: RunFolder, place: Path
) -> None:
    folder.write_json("data.json", {"folder": str(place), "key": "j" * 64})
    said = "holds kkkkkkkkkkkk, the run has jjjjjjjjjjjj"
    assert look(compose, rules, folder) == ("bad", said)


def test_weights_to_begin_with_have_to_be_seen_from_the_node(
    compose: Compose, rules: Preflight, folder: RunFolder, place: Path, tmp_path: Path
) -> None:
    recipe = compose(f"model.init_from={tmp_path / 'gone'}")
    found = check_data(recipe, rules, folder, "node1")
    assert (found.verdict, found.rule) == ("bad", "model.init_from")
    assert found.found.endswith("gone is not to be seen from this node")


def test_data_that_nobody_prepared_are_not_judged(
    compose: Compose, rules: Preflight, folder: RunFolder
) -> None:
    assert look(compose, rules, folder) == ("unknown", "not prepared")


def test_nodes_begin_their_hashes_at_different_files() -> None:
    files = [FileRecord(name=str(number), sha256="", bytes=10) for number in range(100)]
    chosen = [list(some_files(files, 35, f"node{number}")) for number in range(50)]
    assert all(len(some) == 3 for some in chosen)
    assert len({one.name for some in chosen for one in some}) > 50
