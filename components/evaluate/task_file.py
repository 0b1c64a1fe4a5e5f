"""A received task file: which keys and values it may have, and what its templates may compute.

lm-eval runs what it finds: functions, metrics and aggregations by name, templates without a
limit of time or memory. So every key has a type here, and a template is an expression of steps
whose result is at most a few times as long as their input.
"""

from typing import Annotated, Any, Literal

from jinja2 import TemplateError, nodes
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field

from components.config.schema.types import FrozenMapping, Section, Words

MOST_GROWTH, MOST_CHARACTERS = 1000, 1 << 16
TEMPLATES = ("description", "doc_to_text", "doc_to_target", "doc_to_choice")
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.List),
    *(nodes.Tuple, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Keyword, nodes.Call),
    *(nodes.Filter, nodes.Test, nodes.If, nodes.CondExpr, nodes.Compare, nodes.Operand),
    *(
        nodes.Dict,
        nodes.Pair,
        nodes.And,
        nodes.Or,
        nodes.Not,
        nodes.Add,
        nodes.Sub,
        nodes.Concat,
        nodes.Neg,
    ),
)
_STEPS = frozenset(  # filters and methods
    (
        *(
            "trim",
            "strip",
            "lstrip",
            "rstrip",
            "upper",
            "lower",
            "capitalize",
            "title",
            "split",
        ),
        *("index", "find", "startswith", "endswith", "removeprefix", "removesuffix", "replace"),
        *("join", "first", "last", "length", "int", "float", "string", "list", "default"),
        *("get", "keys", "values"),
    )
)


def check_template(text: str) -> None:
    """Check that a template can be rendered in bounded time and memory.

    Raises:
        ValueError: it cannot be read, or it has a loop, a definition, or a step that can make
            long text of short.
    """
    growth = 1.0
    try:
        found = list(SandboxedEnvironment().parse(text).find_all(nodes.Node))
    except (TemplateError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    for node in found:
        if type(node) not in _NODES:
            raise ValueError(f"has a step that is not allowed: {type(node).__name__}")
        if isinstance(node, nodes.Filter | nodes.Call):
            growth *= _growth(node)
    if growth > MOST_GROWTH:
        raise ValueError("can make long text of short: use fewer join and replace")


def _growth(node: nodes.Filter | nodes.Call) -> float:
    """Bound how many times as long as its input the result of a step can be."""
    called = node if isinstance(node, nodes.Filter) else node.node
    step = getattr(called, "name" if called is node else "attr", "a function")
    arguments = [*node.args, *(one.value for one in node.kwargs)]
    if node.dyn_args or node.dyn_kwargs or step not in _STEPS:
        raise ValueError(f"has the step {step}, it may have {', '.join(sorted(_STEPS))}")
    if step not in {"join", "replace"}:
        return 1.0
    texts = [str(one.value) for one in arguments if isinstance(one, nodes.Const)]
    if len(texts) < len(arguments):
        raise ValueError(f"gives {step} something other than texts")
    lengths = [*map(len, texts), 0]
    longer = lengths[1] / lengths[0] if step == "replace" and lengths[0] else sum(lengths) + 1
    return max(1.0, longer)


Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Aggregation = Literal[
    "mean",
    "nanmean",
    "median",
    "perplexity",
    "weighted_perplexity",
    "bits_per_byte",
    "f1",
    "matthews_corrcoef",
    "brier_score",
]
FilterName = Literal["take_first", "take_first_k", "majority_vote", "lowercase", "uppercase",
                     "remove_whitespace"]  # fmt: skip


class Metric(Section):
    """One of lm-eval's own metrics, by name."""

    metric: str
    aggregation: Aggregation | None = None
    higher_is_better: bool | None = None
    ignore_case: bool | None = None
    ignore_punctuation: bool | None = None
    ignore_numbers: bool | None = None
    hf_evaluate: Literal[False] | None = None


class AnswerFilter(Section):
    """One step of what is done to an answer; patterns are left out, which may run for ever."""

    function: FilterName
    k: Annotated[int, Field(ge=1, le=1000)] | None = None


class FilterList(Section):
    """Steps in their order, under a name."""

    name: str
    filter: Annotated[tuple[AnswerFilter, ...], Field(strict=False)]


class GenerationOptions(Section):
    """How an answer is generated."""

    until: Words | str = ()
    max_gen_toks: Annotated[int, Field(ge=1, le=1 << 15)] = 256
    do_sample: bool = False
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 20)] | None = None


class TaskFile(Section):
    """All keys that a task file may have; ``dataset_kwargs`` are checked with their files."""

    task: str
    task_alias: Text | None = None
    description: Text = ""
    metadata: FrozenMapping[Any] | None = None
    dataset_path: Literal["json", "csv", "parquet", "text"]
    dataset_kwargs: FrozenMapping[Any]
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    output_type: Literal[
        "multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"
    ] = "generate_until"
    doc_to_text: Text | int = ""
    doc_to_target: Text | int | Texts = ""
    doc_to_choice: Text | Texts | None = None
    target_delimiter: Text = " "
    fewshot_delimiter: Text = "\n\n"
    num_fewshot: Annotated[int, Field(ge=0, le=1000)] = 0
    generation_kwargs: GenerationOptions | None = None
    metric_list: Annotated[tuple[Metric, ...], Field(strict=False)] | None = None
    filter_list: Annotated[tuple[FilterList, ...], Field(strict=False)] | None = None
