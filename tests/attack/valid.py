"""Valid files of every kind, made once by the program itself: attacks are changes of these."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.data.megatron import write_index
from components.data.token_file import write_token_file
from tests.components.run.cards import write_card

TINY: dict[str, Any] = {
    "defaults": ["teuken7b"],
    "name": "tiny",
    "why": "Is this file read as data?",
    "data": {"sources": {"eu": {"files": ["texts/*.txt"]}}, "shares": {"eu": 1.0}},
}
# Over what a miniature has: only that text, and two steps of a model of two layers.
SMALL = ("data.shares={eu:1.0}", "tokenizer.vocab_size=768")
FEW = (
    *("model.dim=32", "model.num_layers=2", "model.attention.head_dim=8"),
    *("model.mlp.ffn_dim=64", "budget.total_tokens=8_192", "checkpoint.every_tokens=4_096"),
    "evaluation.every_tokens=8_192",
)
RECIPE = {"defaults": ["teuken7b"], "name": "mine", "description": "A test."}
LISTED: dict[str, Any] = {
    "name": "rates",
    "why": "How fast are two batches.",
    "recipe": "gpt175b",
    "cluster": "smng_p2",
    "set": {"budget.seed": 3},
    "grid": {"parallelism.data": [1]},
    "products": {"budget.global_batch_tokens": [614_400, "parallelism.data"]},
    "objective": {"measured": "step_seconds", "planned": "time.step_seconds"},
    "baseline": {},
    "published": {
        "source": "a paper",
        "unit": "seconds",
        "convention": "all steps",
        "values": [{"at": {"parallelism.data": 1}, "value": 2, "place": "page 1"}],
    },
    "figure": {
        "of": "figure 1",
        "title": "Steps",
        "x_title": "degree",
        "y_title": "time",
        "x": ["parallelism.data"],
        "series": [],
        "log": [],
    },
    "queue": {"at_once": 1, "poll_seconds": 1},
}
TASK = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": ["rows.jsonl"]}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "The {{ animal }} says",
    "doc_to_choice": ["woof", "meow"],
    "doc_to_target": "sound",
}
SITE = {"juwels": {"account": "mine", "runs": "/p/scratch/runs", "venv": "/p/venv"}}
SEARCH = {
    "name": "rates",
    "why": "Which seed is best.",
    "recipe": "teuken7b",
    "cluster": "local",
    "set": {},
    "space": {"budget.seed": [1, 2]},
    "products": {},
    "objective": {"measured": "held_out.final", "planned": None, "direction": "minimize"},
    "search": {"sampler": "random", "trials": 1, "at_once": 1, "seed": 1, "poll_seconds": 1},
    "published": {},
}
BEGUN: tuple[dict[str, object], ...] = (
    {"op_code": 0, "study_name": "rates", "directions": [1]},
    {"op_code": 4, "study_id": 0, "datetime_start": "2026-01-01T00:00:00+00:00"},
    {
        "op_code": 5,
        "trial_id": 0,
        "param_name": "budget.seed",
        "param_value_internal": 1,
        "distribution": json.dumps({
            "name": "CategoricalDistribution",
            "attributes": {"choices": [1, 2]},
        }),
    },
)
CHAIN = "4711"
# What a case finds in its working folder, by the kind of file that it attacks.
PARTS: Mapping[str, tuple[str, ...]] = {
    "recipe": ("r.yaml",),
    "lock": ("x.lock.yaml",),
    "bundle": ("x.recipe.yaml",),
    "study": ("s.yaml",),
    "task": ("tasks", "exported"),
    "calibration": ("measured",),
    "card": ("card.json",),
    "run": ("tiny.yaml", "texts", "prepared", "run"),
    "submitted": ("submitted",),
    "site": ("r.yaml", "site.yaml"),
    "tokenizer": ("tiny.yaml", "texts", "tok"),
    "weights": ("tiny.yaml", "texts", "prepared", "exported"),
    "search": ("found", "q.yaml"),
    "dataset": ("tiny.yaml", "texts", "rows"),
    "tokens": ("tiny.yaml", "texts", "tok", "m.bin", "m.idx"),
    "prepared": ("tiny.yaml", "texts", "prepared", "tiny.lock.yaml"),
    "words": ("r.yaml", "x.lock.yaml", "x.recipe.yaml", "run"),
}


def make_valid(folder: Path) -> None:
    """Write all of them into ``folder``, which is the working folder.

    Raises:
        RuntimeError: the program would not make one.
    """
    _texts(folder)
    for name, tree in (
        ("r.yaml", RECIPE),
        ("tiny.yaml", TINY),
        ("s.yaml", LISTED),
        ("q.yaml", SEARCH),
        ("site.yaml", SITE),
        ("tasks/mine.yaml", TASK),
    ):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")
    (folder / "tasks" / "rows.jsonl").write_text('{"animal": "dog", "sound": 0}\n')
    (folder / "rows").mkdir()
    (folder / "rows" / "train.jsonl").write_text('{"text": "a dog"}\n')
    import command.study.search  # noqa: F401 (every search imports Optuna)

    (folder / "found").mkdir()
    begun = "".join(f"{json.dumps({'worker_id': 'w', **record})}\n" for record in BEGUN)
    (folder / "found" / "study.journal").write_text(begun)
    tiny = ["recipe=./tiny.yaml", *SMALL]
    for words in (
        [*tiny, *FEW, "run=run"],
        ["action=export", "run=run", "file=exported"],
        [*tiny, "action=pack", "file=tiny.lock.yaml"],
        ["action=pack", "recipe=bloom560m", "model.dim=64", "file=x.lock.yaml"],
        ["action=pack", "recipe=bloom560m", "model.dim=64", "file=x.recipe.yaml"],
    ):
        if status := main(words):
            raise RuntimeError(f"{words} ended with {status}")
    for page in ("run/report.html", "prepared/*/card.html"):  # of megabytes each
        for file in folder.glob(page):
            file.unlink()
    _submitted(folder)
    _measured(folder)
    write_card(folder / "card.json")
    _tokens(folder)


def _texts(folder: Path) -> None:
    (folder / "texts").mkdir()
    for file in sorted((ROOT / "corpora" / "eu24").glob("*.txt"))[:4]:
        text = file.read_text("utf-8")[:40_000]
        (folder / "texts" / file.name).write_text(text, "utf-8")


def _submitted(folder: Path) -> None:
    """Write the folder of a run that waits on a cluster."""
    run = folder / "submitted"
    shutil.copytree(folder / "run", run)
    words = ["recipe=bloom560m", "cluster=juwels", "scale=full"]
    recipe = compose_recipe(read_point(words))
    (run / "recipe.json").write_text(recipe.model_dump_json(), "utf-8")
    (run / "results.json").unlink()
    (run / "jobs").mkdir()
    at, job = "2026-01-01T00:00:00+00:00", f"{CHAIN}_1"
    lines: list[dict[str, object]] = [
        {"kind": "submit", "at": at, "words": words, "jobs": 2},
        {"kind": "submitted", "at": at, "chain": CHAIN},
        {"kind": "began", "at": at, "job": job, "attempt": 0, "nodes": ["n1"], "tokens": 0},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (run / "jobs" / "chain.jsonl").write_text(text)


def _measured(folder: Path) -> None:
    """Write the folder of a run that ended on a GPU."""
    run = folder / "measured"
    run.mkdir()
    for name in ("results.json", "environment.json", "derived.json"):
        tree = json.loads((folder / "run" / name).read_text("utf-8"))
        tree |= {"device": "NVIDIA A100"} if name == "results.json" else {}
        (run / name).write_text(json.dumps(tree))
    shutil.copy(folder / "submitted" / "recipe.json", run)


def _tokens(folder: Path) -> None:
    """Write token files in Megatron's format, and copy the tokenizer next to them."""
    (made,) = folder.glob("prepared/tiny-*")
    (folder / "tok").mkdir()
    shutil.copy(made / "tokenizer.model", folder / "tok")
    documents = [[5, 6, 7] * 40 for _ in range(30)]
    record = write_token_file(folder / "m.bin", documents, eod_id=1, vocab_size=768)
    tokens = np.fromfile(folder / "m.bin", record.dtype)
    write_index(folder / "m", tokens, record.dtype, eod_id=1)
