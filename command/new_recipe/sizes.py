"""Sizes of a new recipe, each by a rule with its source.

- Budget: 20 tokens per parameter (Hoffmann et al. 2022, arXiv 2203.15556), and at most four
  epochs of the text (Muennighoff et al. 2023, arXiv 2305.16264).
- Shape: 64 channels per layer up to 24 layers, then 128 (GPT-3's table 2.1, arXiv 2005.14165;
  Llama's table 2, arXiv 2302.13971), with head dimension 64, or 128 from 2,048 channels on.
- Batch and learning rate: the power laws of DeepSeek LLM (arXiv 2401.02954, section 3.1) in
  compute, which were fitted from 1e17 FLOPs on. A batch is a power of two, in short runs 1/200
  of the tokens. Below 1e17 FLOPs, the rate is the rate at 1e17, which is stable up to 192
  channels (docs/first_model.md). The rate of larger models falls with the square of the width:
  with the width (Yang et al. 2022, arXiv 2203.03466), and with the depth, because the layers
  add their changes up (Dey et al. 2025, arXiv 2505.01618, divide the branches instead). It does
  not fall below the rate for their batch: the square root of the batch relative to the law's
  batch (Malladi et al. 2022, arXiv 2205.10343). A run that continues from given weights peaks
  at a tenth of the rate, which is the rate at the end of their own training (Parmar et al.
  2024, arXiv 2407.07263).
- beta2: if a batch is smaller than the batch of the rate's law, beta2 rises so that the second
  moment averages over as many tokens as with the law's batch and 0.95 (Marek et al. 2025, arXiv
  2507.07101), but at most to 0.99. With 0.95, the loss of a log file with 4M parameters jumped
  by 0.9 nats.
- Initial weights: a standard deviation of at least sqrt(2 / (5 width)), as in GPT-NeoX-20B and
  BLOOM (Nguyen and Salazar 2019, arXiv 1910.05895). With less, the loss of a narrow model jumps
  at this rate: an early update is then as large as the weights.
- Sequences: 1/10,000 of the tokens. They are shorter if a batch would have fewer than 32
  sequences, down to 256 tokens, and if it would have fewer than 16, down to 128 tokens. With
  fewer, some batches lack a kind of text, and its held-out loss rises (docs/first_model.md).
- Held out: 32 windows and at least 64 documents. A few long documents can over-represent one
  kind of text, and a training batch without that kind then raises the held-out loss.
- Warm-up: 1/20 of the steps, but at least the 2 / (1 - 0.95) steps that Adam's second moment
  needs (Ma and Yarats 2021, arXiv 1910.04209) if these are at most a quarter of the run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.layers import shorten_pattern, split_pattern
from components.config.part_nodes import read_decoder
from components.config.scale_down import narrow_mixer, scale_length
from components.config.suggestions import list_divisors
from components.errors import RecipeError

YamlTree = dict[str, Any]

TOKENS_PER_PARAMETER, MOST_EPOCHS = 20, 4
LEAST_PARAMETERS, MOST_PARAMETERS = 1_000_000, 1_000_000_000  # for a size chosen here
WIDTHS = (*range(64, 513, 64), *range(640, 2_048, 128), *range(2_048, 16_385, 256))
FEWEST_LAYERS = 2
MULTIPLE = 64  # of the MLP's width and of the vocabulary's rows
DEPTH_WEIGHT = 0.1  # weight of the depth's deviation relative to the size's
WINDOWS = 10_000  # windows per budget; a text must fill many
SHORTEST, LONGEST = 128, 2_048
STEPS, FEWEST_SEQUENCES = 200, 4
MIXED_SEQUENCES, LEAST_MIXED_SEQUENCES = 32, 16
LEAST_MIXED_LENGTH = 256  # of a batch with MIXED_SEQUENCES
LEAST_FITTED_FLOPS = 1e17
STABLE_WIDTH = 192
LAW_BETA2, MOST_BETA2 = 0.95, 0.99
MICROBATCH_TOKENS = 4_096  # the logits of a large vocabulary take most of the memory
WARMUP_FRACTION, LEAST_WARMUP_STEPS, MOST_WARMUP_STEPS = 0.05, 40, 2_000  # for a beta2 of 0.95
MOST_WARMUP_FRACTION = 0.25
CONTINUED_LR = 0.1
HELD_OUT_WINDOWS, HELD_OUT_DOCUMENTS, LEAST_HELD_OUT, MOST_HELD_OUT = 32, 64, 0.005, 0.1


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a new recipe. ``wanted_tokens`` is the budget for its parameters."""

    model: YamlTree
    parameters: int
    text_tokens: int
    wanted_tokens: int
    total_tokens: int
    sequence_length: int
    batch_tokens: int
    microbatch_sequences: int
    warmup_tokens: int
    lr: float
    beta2: float
    held_out_fraction: float

    @property
    def num_steps(self) -> int:
        return self.total_tokens // self.batch_tokens

    @property
    def num_epochs(self) -> float:
        return self.total_tokens / (self.text_tokens * (1 - self.held_out_fraction))

    def choose_interval(self, times: int) -> int:
        """Return the tokens, in whole steps, between about ``times`` events of a run."""
        return max(1, self.num_steps // times) * self.batch_tokens


def choose_sizes(
    model: Mapping[str, Any],
    *,
    text_tokens: int,
    num_documents: int | None,
    pieces: int,
    parameters: int | None,
) -> Sizes:
    """Choose all sizes for an amount of text, and ``parameters`` too if none are given.

    If the smallest model with this vocabulary exceeds ``parameters``, raise a RecipeError.
    """
    by_text = MOST_EPOCHS * text_tokens // TOKENS_PER_PARAMETER
    goal = parameters or min(max(by_text, LEAST_PARAMETERS), MOST_PARAMETERS)
    wanted = TOKENS_PER_PARAMETER * goal
    learned = model["positions"].get("num_positions") is not None
    length = _length(wanted, text_tokens, LONGEST)
    rows = {"positions": {"num_positions": length}} if learned else {}
    shape = choose_shape(merge_keys(model, rows), goal, pieces) | rows
    if parameters is not None:
        _check_room(model, parameters, pieces)
    sizes = size_run(
        read_decoder(merge_keys(model, shape)),
        wanted=wanted,
        text_tokens=text_tokens,
        num_documents=num_documents,
    )
    return replace(sizes, model=shape)


def size_run(
    decoder: DecoderSpec,
    *,
    text_tokens: int | None,
    num_documents: int | None,
    wanted: int | None = None,
    longest: int = LONGEST,
) -> Sizes:
    """Size the run of a model. Without a text, assume enough text.

    By default ``wanted`` tokens are a multiple of the active parameters, which a token uses.
    """
    wanted = wanted or TOKENS_PER_PARAMETER * decoder.active_parameters
    text_tokens = text_tokens or wanted
    length = _length(wanted, text_tokens, longest)
    windows = HELD_OUT_WINDOWS * length / text_tokens
    documents = HELD_OUT_DOCUMENTS / num_documents if num_documents else 0
    held_out = round(min(max(windows, documents, LEAST_HELD_OUT), MOST_HELD_OUT), 3)
    about = min(wanted, int(MOST_EPOCHS * text_tokens * (1 - held_out)))
    flops = 6 * (decoder.active_parameters - decoder.embedding_parameters) * about
    wanted_batch = min(_law_batch(flops), about / STEPS)
    length = min(length, _mixed_length(wanted_batch))
    sequences = max(power_of_two(wanted_batch / length), FEWEST_SEQUENCES)
    batch = sequences * length
    steps = max(1, about // batch)
    least_warmup = min(LEAST_WARMUP_STEPS, int(MOST_WARMUP_FRACTION * steps))
    warmup_steps = min(max(1, least_warmup, int(WARMUP_FRACTION * steps)), MOST_WARMUP_STEPS)
    return Sizes(
        model={},
        parameters=decoder.total_parameters,
        text_tokens=text_tokens,
        wanted_tokens=wanted,
        total_tokens=steps * batch,
        sequence_length=length,
        batch_tokens=batch,
        microbatch_sequences=min(sequences, max(1, MICROBATCH_TOKENS // length)),
        warmup_tokens=warmup_steps * batch,
        lr=_choose_rate(flops, wanted_batch, decoder.dim),
        beta2=_choose_beta2(flops, batch),
        held_out_fraction=held_out,
    )


def _law_batch(flops: float) -> float:
    """Return the batch in tokens by the law of DeepSeek LLM."""
    return float(0.2920 * flops**0.3271)


def _choose_rate(flops: float, batch_tokens: float, width: int) -> float:
    """Return the peak learning rate by the law of DeepSeek LLM, less for wide small models."""
    fitted = max(flops, LEAST_FITTED_FLOPS)
    by_batch = math.sqrt(batch_tokens / _law_batch(fitted))
    by_size = (STABLE_WIDTH / width) ** 2
    return float(0.3118 * fitted**-0.1250 * min(max(by_size, by_batch), 1.0))


def _choose_beta2(flops: float, batch_tokens: int) -> float:
    """Return Adam's beta2: its half-life in tokens is that of 0.95 at the law's batch."""
    share = min(batch_tokens / _law_batch(max(flops, LEAST_FITTED_FLOPS)), 1.0)
    return round(min(math.pow(LAW_BETA2, share), MOST_BETA2), 3)


def _length(wanted: int, text_tokens: int, longest: int) -> int:
    tokens = min(wanted, MOST_EPOCHS * text_tokens)
    return power_of_two(min(max(tokens / WINDOWS, SHORTEST), LONGEST, longest))


def _mixed_length(batch_tokens: float) -> int:
    """Return the sequence length with which a batch has sequences of all kinds of text."""
    length = power_of_two(batch_tokens / MIXED_SEQUENCES)
    if length < LEAST_MIXED_LENGTH:
        length = min(power_of_two(batch_tokens / LEAST_MIXED_SEQUENCES), LEAST_MIXED_LENGTH)
    return max(length, SHORTEST)


def power_of_two(number: float) -> int:
    """Return the largest power of two that is at most ``number``, and at least 1."""
    return 1 << max(0, math.floor(math.log2(max(number, 1))))


def choose_shape(model: Mapping[str, Any], parameters: int, pieces: int) -> YamlTree:
    """Return the keys that give ``model`` about ``parameters`` with a vocabulary of ``pieces``.

    The ratios of the model stay the same: MLP width to width, queries to keys.
    """
    fewest = len({*split_pattern(model.get("pattern") or [])})  # a layer of each kind
    depths = {width: [max(n, fewest) for n in _depths(width)] for width in WIDTHS}

    @cache
    def size_error(width: int, layers: int) -> float:
        decoder = read_decoder(merge_keys(model, _shape(model, width, layers, pieces)))
        return math.log(decoder.total_parameters / parameters)

    def least_error(width: int) -> float:
        """Return a lower bound, since more layers have more parameters."""
        return max(size_error(width, depths[width][0]), -size_error(width, depths[width][-1]))

    def shape_distance(width: int, layers: int) -> float:
        depth_error = math.log(layers / _depth(width))
        return abs(size_error(width, layers)) + DEPTH_WEIGHT * abs(depth_error)

    best, shape = math.inf, (0, 0)
    for width in sorted(WIDTHS, key=least_error):
        if least_error(width) > best:
            break
        best, shape = min(
            (best, shape), *((shape_distance(width, n), (width, n)) for n in depths[width])
        )
    return _shape(model, *shape, pieces)


def _depth(width: int) -> int:
    return max(min(width // 64, 24), width // 128)


def _depths(width: int) -> range:
    rule = _depth(width)
    most = max(2 * FEWEST_LAYERS, math.ceil(1.5 * rule))
    return range(max(FEWEST_LAYERS, math.floor(0.75 * rule)), most + 1)


def _shape(model: Mapping[str, Any], width: int, layers: int, pieces: int) -> YamlTree:
    model_attention = model["attention"]
    head_dim = 64 if width < 2_048 else 128
    heads = width // head_dim
    most = max(1, heads * model_attention["num_kv_heads"] // model_attention["num_heads"])
    attention = {
        "num_heads": heads,
        "num_kv_heads": max(n for n in list_divisors(heads) if n <= most),
        "head_dim": head_dim,
    }
    if "key_value_rank" in model_attention:  # ranks scale with width, half a head rotates
        ranks = {
            key: model_attention[key]
            for key in ("query_rank", "key_value_rank")
            if model_attention[key]
        }
        attention |= {key: max(1, rank * width // model["dim"]) for key, rank in ranks.items()}
        attention |= {"rotary_dim": head_dim // 2, "value_dim": head_dim}
    ffn_width = width * model["mlp"]["ffn_dim"] / model["dim"]
    shape: YamlTree = {
        "dim": width,
        "num_layers": layers,
        "vocab_size": pieces,
        "padded_vocab_size": -(-pieces // MULTIPLE) * MULTIPLE,
        "attention": attention,
        "mlp": {"ffn_dim": max(1, math.ceil(ffn_width / MULTIPLE)) * MULTIPLE},
    }
    if len(pattern := split_pattern(model.get("pattern") or [])) > layers:
        shape["pattern"] = shorten_pattern(pattern, layers)
    if mixers := model.get("mixers"):
        scales = {
            "heads": head_dim / model_attention["head_dim"],
            "width": width / model["dim"],
        }
        shape["mixers"] = {
            name: narrow_mixer(mixer, **scales) for name, mixer in mixers.items()
        }
    if model.get("dense_mlp") is not None:  # at least one layer has experts
        shape["num_dense_layers"] = min(model["num_dense_layers"], layers - 1)
    if model.get("init_from", "none") != "none":
        shape["init_from"] = "none"
    std, least = model["initialization"]["std"], float(f"{math.sqrt(0.4 / width):.2g}")
    is_scaled = "base_dim" in (model.get("parametrization") or {})
    if not isinstance(std, str) and std < least and not is_scaled:
        shape["initialization"] = {"std": least}
    return shape


def merge_keys(below: Mapping[str, Any], above: Mapping[str, Any]) -> YamlTree:
    """Merge the keys of ``above`` over ``below``."""
    return {**below} | {
        key: merge_keys(below.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in above.items()
    }


def keep_lengths(full: Mapping[str, Any], total_tokens: int) -> YamlTree:
    """Scale the token lengths of schedule and optimizer to another budget.

    If the reference run ended during its warm-up, the lengths scale with its schedule instead.
    """
    reference = full["budget"]["total_tokens"]
    if full["schedule"].get("warmup_tokens", 0) >= reference:
        reference = full["schedule"]["total_tokens"]

    def scale_section(section: Mapping[str, Any]) -> YamlTree:
        lengths = {
            key: scale_section(value)
            if isinstance(value, Mapping)
            else scale_length(key, value, total_tokens, reference)
            for key, value in section.items()
            if isinstance(value, Mapping) or key.endswith("_tokens")
        }
        return {key: value for key, value in lengths.items() if value != {}}

    return {section: scale_section(full[section]) for section in ("optimizer", "schedule")}


def _check_room(model: Mapping[str, Any], parameters: int, pieces: int) -> None:
    smallest = read_decoder(merge_keys(model, _shape(model, WIDTHS[0], FEWEST_LAYERS, pieces)))
    least = smallest.total_parameters
    if parameters < least:
        problem = (
            f"{parameters:,} is too small: with {pieces:,} pieces the smallest model has "
            f"{least:,} parameters (embedding: {smallest.embedding_parameters:,})"
        )
        size = f"parameters={math.ceil(least / 1e5) / 10:.1f}M"
        remedy = f"write {size} or more, or tokenizer=train for fewer pieces"
        raise RecipeError("parameters", problem, remedy)
