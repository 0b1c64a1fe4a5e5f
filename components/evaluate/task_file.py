"""Received task files: the keys and values they may have, and limits for their templates.

lm-eval runs functions, metrics and aggregations by name, and templates without a limit of time
or memory. So every key has a type here, and a template may only use steps that bound the length
of their result.
"""

from typing import Annotated, Any, Literal

from jinja2 import TemplateError, nodes
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field

from components.config.schema.types import FrozenMapping, Section, WordTuple

MOST_GROWTH, MOST_CHARACTERS = 1000, 1 << 16
TEMPLATES = ("description", "doc_to_text", "doc_to_target", "doc_to_choice")
_NODES = (
    "Template Output TemplateData Name Const List Tuple Dict Pair Getattr Getitem Slice Keyword"
    " Call Filter Test If CondExpr Compare Operand And Or Not Add Sub Concat Neg"
)
_STEPS = (  # filters and methods
    "capitalize default endswith find first float get index int join keys last length list"
    " lower lstrip removeprefix removesuffix replace rstrip split startswith string strip title"
    " trim upper values"
)


def check_template(text: str) -> None:
    """Check that a template can be rendered in bounded time and memory.

    Loops, definitions, and what can turn short text into long text are a ValueError.
    """
    growth = 1.0
    try:
        steps = list(SandboxedEnvironment().parse(text).find_all(nodes.Node))
    except (TemplateError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    for step in steps:
        if type(step).__name__ not in _NODES.split():
            raise ValueError(f"has a step that is not allowed: {type(step).__name__}")
        if isinstance(step, nodes.Filter | nodes.Call):
            growth *= _bound_growth(step)
    if growth > MOST_GROWTH:
        raise ValueError("can make a text too long: use fewer join and replace")


def _bound_growth(call: nodes.Filter | nodes.Call) -> float:
    """Return the largest ratio of a result's length to the length of its input."""
    if isinstance(call, nodes.Filter):
        name = call.name
    else:
        name = getattr(call.node, "attr", "a function")
    if call.dyn_args or call.dyn_kwargs or name not in _STEPS.split():
        raise ValueError(f"has the step {name}, expected one of {', '.join(_STEPS.split())}")
    if name not in {"join", "replace"}:
        return 1.0
    arguments = [*call.args, *(keyword.value for keyword in call.kwargs)]
    constants = [argument for argument in arguments if isinstance(argument, nodes.Const)]
    if len(constants) < len(arguments):
        raise ValueError(f"calls {name} with an argument that is not text")
    old, new = [*(len(str(constant.value)) for constant in constants), 0, 0][:2]
    return max(1.0, new / old if name == "replace" and old else old + new + 1)


BoundedText = Annotated[str, Field(max_length=MOST_CHARACTERS)]
BoundedTexts = Annotated[tuple[BoundedText, ...], Field(strict=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Aggregation = Literal["mean", "nanmean", "median", "perplexity", "weighted_perplexity",
                      "bits_per_byte", "f1", "matthews_corrcoef", "brier_score"]  # fmt: skip
FilterName = Literal["take_first", "take_first_k", "majority_vote", "lowercase", "uppercase",
                     "remove_whitespace"]  # fmt: skip
OutputType = Literal["multiple_choice", "loglikelihood", "loglikelihood_rolling",
                     "generate_until"]  # fmt: skip


class Metric(Section):
    """A metric of lm-eval, by name."""

    metric: str
    aggregation: Aggregation | None = None
    higher_is_better: bool | None = None
    ignore_case: bool | None = None
    ignore_punctuation: bool | None = None
    ignore_numbers: bool | None = None
    hf_evaluate: Literal[False] | None = None


class AnswerFilter(Section):
    """A change of an answer. Regular expressions are not allowed: they may run forever."""

    function: FilterName
    k: Annotated[int, Field(ge=1, le=1000)] | None = None


class FilterList(Section):
    """A named sequence of changes of an answer."""

    name: str
    filter: Annotated[tuple[AnswerFilter, ...], Field(strict=False)]


class GenerationOptions(Section):
    """Options of lm-eval for generated answers."""

    until: WordTuple | str = ()
    max_gen_toks: Annotated[int, Field(ge=1, le=1 << 15)] = 256
    do_sample: bool = False
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None


class TaskFile(Section):
    """All keys of a task file; the caller checks the files of ``dataset_kwargs``."""

    task: str
    task_alias: BoundedText | None = None
    description: BoundedText = ""
    metadata: FrozenMapping[Any] | None = None
    dataset_path: Literal["json", "csv", "parquet", "text"]
    dataset_kwargs: FrozenMapping[Any]
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    output_type: OutputType = "generate_until"
    doc_to_text: BoundedText | int = ""
    doc_to_target: BoundedText | int | BoundedTexts = ""
    doc_to_choice: BoundedText | BoundedTexts | None = None
    target_delimiter: BoundedText = " "
    fewshot_delimiter: BoundedText = "\n\n"
    num_fewshot: Annotated[int, Field(ge=0, le=1000)] = 0
    generation_kwargs: GenerationOptions | None = None
    metric_list: Annotated[tuple[Metric, ...], Field(strict=False)] | None = None
    filter_list: Annotated[tuple[FilterList, ...], Field(strict=False)] | None = None
