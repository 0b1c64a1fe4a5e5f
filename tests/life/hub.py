"""Data sets with the columns of the hub's, in folders that ``datasets`` opens by their names.

It takes a folder ``OWNER/NAME`` below the working folder for the data set of that name, so
that staging runs as it does with a network, but for the network.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]
THINGS = [("dog", "barks"), ("cat", "meows"), ("cow", "moos"), ("owl", "hoots")]
SAYS = [says for _, says in THINGS]


def question(index: int) -> str:
    return f"What does the {THINGS[index % 4][0]} number {index} do?"


def arc(index: int) -> dict[str, Any]:
    labels = ["A", "B", "C", "D"]
    choices = {"text": SAYS, "label": labels}
    answer = labels[index % 4]
    return {
        "id": str(index),
        "question": question(index),
        "choices": choices,
        "answerKey": answer,
    }


def openbookqa(index: int) -> dict[str, Any]:
    doc = arc(index)
    return {"question_stem": doc.pop("question"), **doc}


def hellaswag(index: int) -> dict[str, Any]:
    return {
        "ind": index, "activity_label": "Farming", "ctx_b": "it",
        "ctx_a": f"The {THINGS[index % 4][0]} wakes.", "ctx": "",
        "endings": [f"{one} [title] loudly." for one in SAYS],
        "label": str(index % 4),
    }  # fmt: skip


def piqa(index: int) -> dict[str, Any]:
    right, wrong = f"see how it {SAYS[index % 4]}", "see how it sings"
    sides = (right, wrong) if index % 2 == 0 else (wrong, right)
    return {
        "goal": f"{index}: know an animal",
        "sol1": sides[0],
        "sol2": sides[1],
        "label": index % 2,
    }


def boolq(index: int) -> dict[str, Any]:
    return {
        "passage": "Dogs bark, and cats meow.", "idx": index, "label": int(index % 4 == 0),
        "question": f"does the {THINGS[index % 4][0]} bark",
    }  # fmt: skip


def sciq(index: int) -> dict[str, Any]:
    wrong = [one for one in SAYS if one != SAYS[index % 4]]
    return {
        "support": " Animals have voices.", "question": question(index),
        **{f"distractor{place + 1}": one for place, one in enumerate(wrong)},
        "correct_answer": SAYS[index % 4],
    }  # fmt: skip


def winogrande(index: int) -> dict[str, Any]:
    sentence = f"The dog chased the cat number {index} because the _ was angry."
    return {
        "sentence": sentence,
        "option1": "dog",
        "option2": "cat",
        "answer": str(1 + index % 2),
    }


def mmlu(index: int) -> dict[str, Any]:
    return {"question": question(index), "choices": SAYS, "answer": index % 4}


NINE = {
    ("allenai/ai2_arc", "ARC-Easy"): (arc, ("train", "validation", "test")),
    ("allenai/ai2_arc", "ARC-Challenge"): (arc, ("train", "validation", "test")),
    ("Rowan/hellaswag", "default"): (hellaswag, ("train", "validation")),
    ("baber/piqa", "default"): (piqa, ("train", "validation")),
    ("aps/super_glue", "boolq"): (boolq, ("train", "validation")),
    ("allenai/sciq", "default"): (sciq, ("train", "validation", "test")),
    ("allenai/winogrande", "winogrande_xl"): (winogrande, ("train", "validation")),
    ("allenai/openbookqa", "main"): (openbookqa, ("train", "validation", "test")),
}


def write_hub(folder: Path, subjects: Sequence[str]) -> None:
    """Write the data sets of the nine tasks, a few rows each, and ``subjects`` of MMLU."""
    made = dict(NINE) | {("cais/mmlu", one): (mmlu, ("dev", "test")) for one in subjects}
    cards: dict[str, list[str]] = {}
    for place, ((path, config), (row, splits)) in enumerate(made.items()):
        lines = cards.setdefault(path, [])
        lines += [f"- config_name: {config}", "  data_files:"]
        for offset, split in enumerate(splits):
            file = folder / path / config / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            count = 2 + (place + offset) % 4  # of several sizes, so that weights matter
            rows = (row(place + offset + one) for one in range(count))
            file.write_text("".join(json.dumps(one) + "\n" for one in rows))
            lines += [f"  - split: {split}", f"    path: {config}/{split}.jsonl"]
    for path, lines in cards.items():
        (folder / path / "README.md").write_text(
            "\n".join(["---", "configs:", *lines, "---", ""])
        )
