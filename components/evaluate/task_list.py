"""A named list of tasks, as a paper evaluates: what is asked, how, and of which data.

``task_lists/NAME.yaml`` is data; the tasks themselves are lm-eval's, by their names there.
Where a list is of several languages, ``each`` has their words, and ``<word>`` stands for them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from components.config.schema.types import FrozenMapping, Section

OWN_CONFIG = "<config>"  # of the data set, as each of lm-eval's tasks has it
Texts = FrozenMapping[str]


class ListedTask(Section):
    """One score: the mean over what it ``asks``, and over the languages if it has any.

    ``asks`` maps a task or group of lm-eval to the configuration of ``dataset`` that it reads,
    ``<config>`` being that which lm-eval reads itself. ``split`` is what is scored, ``metric``
    one of lm-eval's, by whose own ``acc_norm`` a choice's log-likelihood is divided by its
    characters. ``doc_to_text`` and ``doc_to_choice`` are other templates than lm-eval's;
    ``departs`` says in what the question is not the source's, and without ``in_mean`` the
    source's mean is one of the others.
    """

    asks: Texts
    dataset: str
    split: str
    version: float | str
    num_fewshot: Annotated[int, Field(ge=0)]
    metric: str
    source: str
    doc_to_text: str = ""
    doc_to_choice: str = ""
    departs: str = ""
    in_mean: bool = True


class TaskList(Section):
    """The tasks of ``name``; ``harness`` is the version of lm-eval that has them by name."""

    name: str
    why: str
    harness: str
    each: FrozenMapping[Texts]  # by language
    words: Texts  # of every language that has no other
    tasks: FrozenMapping[ListedTask]

    def questions(self) -> Iterator["TaskQuestion"]:
        """List what lm-eval is asked, one after the other."""
        for name, task in self.tasks.items():
            for language, own in (self.each or {"": {}}).items():
                words = {**self.words, **own}
                templates = {
                    "doc_to_text": _filled(task.doc_to_text, words),
                    "doc_to_choice": _filled(task.doc_to_choice, words),
                }
                for asked, config in task.asks.items():
                    yield TaskQuestion(
                        task=name,
                        part="-".join(filter(None, (asked, language))),
                        asked=asked,
                        dataset=_filled(task.dataset, words),
                        config=_filled(config, words),
                        templates={key: text for key, text in templates.items() if text},
                    )


@dataclass(frozen=True, kw_only=True)
class TaskQuestion:
    """A task or group of lm-eval, the data set that it reads, and templates that are others."""

    task: str
    part: str
    asked: str
    dataset: str
    config: str
    templates: Mapping[str, str]

    def config_of(self, own: str | None) -> str:
        """Name the configuration for a task that by itself reads ``own``."""
        return self.config.replace(OWN_CONFIG, own or "default")


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"<{word}>", value)
    return text
