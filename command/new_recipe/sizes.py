"""The sizes of a new recipe, each by a rule with its source.

- Budget: 20 tokens a parameter (Hoffmann et al. 2022, arXiv 2203.15556), and the text at most
  four times (Muennighoff et al. 2023, arXiv 2305.16264).
- Shape: 64 channels a layer up to 24 layers, then 128 (GPT-3's table 2.1, arXiv 2005.14165;
  Llama's table 2, arXiv 2302.13971), in heads of 64, or of 128 from 2,048 channels on.
- Batch and learning rate: the power laws of DeepSeek LLM (arXiv 2401.02954, section 3.1) over
  the compute, which were fitted from 1e17 FLOPs on; below, the rate stays what it is there.
  A batch is a power of two, in short runs a 200th of the tokens: where it is smaller than the
  law's, the rate falls with its square root (Malladi et al. 2022, arXiv 2205.10287).
  A run that continues from given weights peaks at a tenth of it: at the rate with which their
  own training ended (Parmar et al. 2024, arXiv 2407.07263).
- First weights: a deviation of at least sqrt(2 / (5 width)), as GPT-NeoX-20B and BLOOM have it
  (Nguyen and Salazar 2019, arXiv 1910.05895). With less the loss of a narrow model jumps at
  this rate: an early update is then as large as what it updates.
- Sequences: a 10,000th of the tokens, shorter where a batch would have fewer than 16 of them.
  With 8, some batches lack a kind of text, and its held-out loss rises (docs/first_model.md).
- Held out: 32 windows and at least 64 documents. A few long documents can over-represent one
  kind of text, and a training batch without that kind then raises the held-out loss.
- Warm-up: a twentieth of the steps, but at least the 2 / (1 - beta2) that Adam's second moment
  needs (Ma and Yarats 2021, arXiv 1910.04209) if they are not over a quarter of the run.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from components.config.model_spec.decoder import DecoderSpec
from components.config.part_nodes import read_decoder
from components.config.scale_down import scale_length
from components.config.suggestions import divisors
from components.config.user_overrides import leaves
from components.errors import RecipeError

FETCH = "fetch the folder again, or name another one"
Tree = dict[str, Any]

TOKENS_PER_PARAMETER, MOST_EPOCHS = 20, 4
LEAST_PARAMETERS, MOST_PARAMETERS = 1_000_000, 1_000_000_000  # of those that are chosen here
WIDTHS = (*range(64, 513, 64), *range(640, 2_048, 128), *range(2_048, 16_385, 256))
FEWEST_LAYERS = 2
MULTIPLE = 64  # of the MLP's width and of the vocabulary's rows
DEPTH_WEIGHT = 0.1  # a depth off the rule counts less than a size that is off
WINDOWS = 10_000  # that a budget holds; a text has to fill many
SHORTEST, LONGEST = 128, 2_048
STEPS, FEWEST_SEQUENCES, MIXED_SEQUENCES = 200, 4, 16
LEAST_FITTED_FLOPS = 1e17
MICROBATCH_TOKENS = 4_096  # the logits of a large vocabulary take most of the memory
WARMUP_FRACTION, LEAST_WARMUP_STEPS, MOST_WARMUP_STEPS = 0.05, 40, 2_000  # beta2 is 0.95
MOST_WARMUP_FRACTION = 0.25
CONTINUED_LR = 0.1
HELD_OUT_WINDOWS, HELD_OUT_DOCUMENTS, LEAST_HELD_OUT, MOST_HELD_OUT = 32, 64, 0.005, 0.1


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a new recipe says in numbers; ``wanted_tokens`` are those of its parameters."""

    model: Tree
    parameters: int
    text_tokens: int
    wanted_tokens: int
    total_tokens: int
    sequence_length: int
    batch_tokens: int
    microbatch_sequences: int
    warmup_tokens: int
    lr: float
    held_out_fraction: float

    @property
    def steps(self) -> int:
        return self.total_tokens // self.batch_tokens

    @property
    def epochs(self) -> float:
        return self.total_tokens / (self.text_tokens * (1 - self.held_out_fraction))

    def every(self, times: int) -> int:
        """Return the tokens between events of which a run has about ``times``, whole steps."""
        return max(1, self.steps // times) * self.batch_tokens


def choose_sizes(
    model: Mapping[str, Any],
    *,
    text_tokens: int,
    num_documents: int | None,
    pieces: int,
    parameters: int | None,
) -> Sizes:
    """Size a recipe for so much text: ``parameters`` follow from it if none are asked for.

    Raises:
        RecipeError: the vocabulary alone is more than so few parameters.
    """
    by_text = MOST_EPOCHS * text_tokens // TOKENS_PER_PARAMETER
    goal = parameters or min(max(by_text, LEAST_PARAMETERS), MOST_PARAMETERS)
    wanted = TOKENS_PER_PARAMETER * goal
    length = _length(min(wanted, MOST_EPOCHS * text_tokens), LONGEST)
    learned = model["positions"].get("num_positions") is not None
    rows = {"positions": {"num_positions": length}} if learned else {}
    shape = choose_shape(_overlaid(model, rows), goal, pieces) | rows
    if parameters is not None:
        _check_room(model, parameters, pieces)
    counted = read_decoder(_overlaid(model, shape))
    held_out = _held_out_fraction(text_tokens, num_documents, length)
    return _size_run(
        counted,
        shape,
        text_tokens=text_tokens,
        held_out=held_out,
        wanted=wanted,
        length=length,
    )


def size_budget(
    model: Mapping[str, Any],
    *,
    text_tokens: int | None,
    num_documents: int | None,
    longest: int,
) -> Sizes:
    """Size the run of a model that is given; without a text, as if there were enough.

    A token meets the ``active`` parameters, so they count.

    Raises:
        RecipeError: a size is out of range.
    """
    try:
        counted = read_decoder(model)
    except RecipeError as error:
        raise RecipeError(error.path, error.problem, FETCH) from None
    wanted = TOKENS_PER_PARAMETER * counted.active_parameters
    text_tokens = text_tokens or wanted
    length = _length(min(wanted, MOST_EPOCHS * text_tokens), longest)
    held_out = _held_out_fraction(text_tokens, num_documents, length)
    return _size_run(
        counted, {}, text_tokens=text_tokens, held_out=held_out, wanted=wanted, length=length
    )


def _length(tokens: int, longest: int) -> int:
    return power_of_two(min(max(tokens / WINDOWS, SHORTEST), LONGEST, longest))


def _held_out_fraction(text_tokens: int, num_documents: int | None, length: int) -> float:
    """Compute the fraction to hold out: enough windows, from enough documents."""
    windows = HELD_OUT_WINDOWS * length / text_tokens
    documents = HELD_OUT_DOCUMENTS / num_documents if num_documents else 0
    return round(min(max(windows, documents, LEAST_HELD_OUT), MOST_HELD_OUT), 3)


def _size_run(
    counted: DecoderSpec,
    shape: Tree,
    *,
    text_tokens: int,
    held_out: float,
    wanted: int,
    length: int,
) -> Sizes:
    most_tokens = MOST_EPOCHS * text_tokens
    about = min(wanted, int(most_tokens * (1 - held_out)))
    flops = 6 * (counted.active_parameters - counted.embedding_parameters) * about
    rule = 0.2920 * flops**0.3271
    batch = min(rule, about / STEPS)
    length = min(length, max(SHORTEST, power_of_two(batch / MIXED_SEQUENCES)))
    sequences = max(power_of_two(batch / length), FEWEST_SEQUENCES)
    batch = sequences * length
    steps = max(1, about // batch)
    least_warmup = min(LEAST_WARMUP_STEPS, int(MOST_WARMUP_FRACTION * steps))
    warmup_steps = min(max(1, least_warmup, int(WARMUP_FRACTION * steps)), MOST_WARMUP_STEPS)
    return Sizes(
        model=shape,
        parameters=counted.total_parameters,
        text_tokens=text_tokens,
        wanted_tokens=wanted,
        total_tokens=steps * batch,
        sequence_length=length,
        batch_tokens=batch,
        microbatch_sequences=min(sequences, max(1, MICROBATCH_TOKENS // length)),
        warmup_tokens=warmup_steps * batch,
        lr=0.3118 * max(flops, LEAST_FITTED_FLOPS) ** -0.1250 * min(1, batch / rule) ** 0.5,
        held_out_fraction=held_out,
    )


def power_of_two(number: float) -> int:
    """Return the largest power of two that is not above ``number``, at least 1."""
    return 1 << max(0, math.floor(math.log2(max(number, 1))))


def choose_shape(model: Mapping[str, Any], parameters: int, pieces: int) -> Tree:
    """Return the keys that bring ``model`` near so many parameters, for so many pieces.

    What makes the model what it is stays: the MLP's width to the width, queries to a key.
    """
    shapes = (
        (_shaped(model, width, layers, pieces), layers / _depth(width))
        for width in WIDTHS
        for layers in _depths(width)
    )

    def distance(candidate: tuple[Tree, float]) -> float:
        shape, depths = candidate
        count = read_decoder(_overlaid(model, shape)).total_parameters
        return abs(math.log(count / parameters)) + DEPTH_WEIGHT * abs(math.log(depths))

    return min(shapes, key=distance)[0]


def _depth(width: int) -> int:
    return max(min(width // 64, 24), width // 128)


def _depths(width: int) -> Iterator[int]:
    rule = _depth(width)
    most = max(2 * FEWEST_LAYERS, math.ceil(1.5 * rule))
    yield from range(max(FEWEST_LAYERS, math.floor(0.75 * rule)), most + 1)


def _shaped(model: Mapping[str, Any], width: int, layers: int, pieces: int) -> Tree:
    queries, keys = model["attention"]["num_heads"], model["attention"]["num_kv_heads"]
    head_dim = 64 if width < 2_048 else 128
    heads = width // head_dim
    most = max(1, heads * keys // queries)
    ffn_width = width * model["mlp"]["ffn_dim"] / model["dim"]
    return (
        {
            "dim": width,
            "num_layers": layers,
            "vocab_size": pieces,
            "padded_vocab_size": -(-pieces // MULTIPLE) * MULTIPLE,
            "attention": {
                "num_heads": heads,
                "num_kv_heads": max(n for n in divisors(heads) if n <= most),
                "head_dim": head_dim,
                **_latent(model, width, head_dim),
            },
            "mlp": {"ffn_dim": max(1, math.ceil(ffn_width / MULTIPLE)) * MULTIPLE},
        }
        | _dense_layers(model, layers)
        | _first_weights(model, width)
    )


def _dense_layers(model: Mapping[str, Any], layers: int) -> Tree:
    """Give the number of dense layers, so that one layer at least has experts."""
    if model.get("dense_mlp") is None:
        return {}
    return {"num_dense_layers": min(model["num_dense_layers"], layers - 1)}


def _latent(model: Mapping[str, Any], width: int, head_dim: int) -> Tree:
    """Give the keys of latent attention: ranks by the width, rotations for half a head."""
    attention = model["attention"]
    if "key_value_rank" not in attention:
        return {}
    ranks = {key: attention[key] for key in ("query_rank", "key_value_rank") if attention[key]}
    ranks = {key: max(1, rank * width // model["dim"]) for key, rank in ranks.items()}
    return {**ranks, "rotary_dim": head_dim // 2, "value_dim": head_dim}


def _first_weights(model: Mapping[str, Any], width: int) -> Tree:
    """Give the keys of the first weights: drawn, with at least the deviation for the width."""
    drawn = {} if model.get("init_from", "none") == "none" else {"init_from": "none"}
    std = model["initialization"]["std"]
    least = float(f"{math.sqrt(0.4 / width):.2g}")
    if isinstance(std, str) or std >= least or model.get("parametrization") is not None:
        return drawn
    return drawn | {"initialization": {"std": least}}


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    return {**below} | {
        key: _overlaid(below[key], value) if isinstance(value, dict) else value
        for key, value in above.items()
    }


def keep_lengths(full: Mapping[str, Any], total_tokens: int) -> Tree:
    """Return the lengths of schedule and optimizer as the same parts of another budget.

    Of a run that ended inside its warm-up, as the same parts of its schedule.
    """
    reference = full["budget"]["total_tokens"]
    if full["schedule"].get("warmup_tokens", 0) >= reference:
        reference = full["schedule"]["total_tokens"]
    kept: Tree = {"optimizer": {}, "schedule": {}}
    for section in kept:
        for path, value in leaves(full[section], section):
            if path.endswith("_tokens"):
                *parents, last = path.split(".")
                here = kept
                for step in parents:
                    here = here.setdefault(step, {})
                here[last] = scale_length(last, value, total_tokens, reference)
    return kept


def _check_room(model: Mapping[str, Any], parameters: int, pieces: int) -> None:
    smallest = _shaped(model, WIDTHS[0], FEWEST_LAYERS, pieces)
    shape = read_decoder(_overlaid(model, smallest))
    if parameters < shape.total_parameters:
        least = shape.total_parameters
        problem = f"{parameters:,} are too few: with {pieces:,} pieces the smallest model has"
        remedy = f"write parameters={math.ceil(least / 1e5) / 10:.1f}M or more, or tokenizer="
        problem = f"{problem} {least:,}, {shape.embedding_parameters:,} of them for the pieces"
        raise RecipeError("parameters", problem, f"{remedy}train for fewer pieces")
