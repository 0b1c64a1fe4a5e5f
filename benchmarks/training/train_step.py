"""Is our training step at least as fast as the reference model's, on this machine?

Both models have the same shapes and start from the same weights; both get the same
microbatches, gradient clipping and optimizer settings. Each is taken as it is and through
torch's compiler: ours layer by layer, the reference whole. Rounds are interleaved, so that what
else the machine does hits all; the medians of one run are compared.

    python -m benchmarks.training.train_step
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, keep_result
from components.attention_backends import BACKENDS
from components.config.model_spec.attention import GroupedQueryAttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import MLPSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import RotarySpec
from components.distributed.compile import compile_layers
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.optim.adamw import AdamW

THREADS, ROUNDS, WARMUP_ROUNDS = 2, 25, 3
MICROBATCHES, SAMPLES, SEQUENCE_LENGTH, VOCAB_SIZE = 2, 8, 256, 4_096
DIM, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, FFN_DIM = 256, 4, 8, 2, 32, 840
EPS, BASE, STD = 1e-5, 10_000.0, 0.02
LR, BETA1, BETA2, ADAM_EPS, WEIGHT_DECAY, MAX_NORM = 3e-4, 0.9, 0.95, 1e-8, 0.1, 1.0

SHAPE = {
    "dim": DIM,
    "num_layers": NUM_LAYERS,
    "num_heads": NUM_HEADS,
    "num_kv_heads": NUM_KV_HEADS,
    "head_dim": HEAD_DIM,
    "ffn_dim": FFN_DIM,
    "vocab_size": VOCAB_SIZE,
    "sequence_length": SEQUENCE_LENGTH,
    "tokens_per_step": MICROBATCHES * SAMPLES * SEQUENCE_LENGTH,
    "microbatches": MICROBATCHES,
    "rounds": ROUNDS,
    "threads": THREADS,
}

OURS, OURS_COMPILED = "ours", "ours, compiled"
THEIRS, THEIRS_COMPILED = "transformers", "transformers, compiled"
# Tokens a second of the first by those of the second, at least.
TARGETS = {
    (OURS, THEIRS): 1.0,
    (OURS_COMPILED, THEIRS): 1.15,
    (OURS_COMPILED, THEIRS_COMPILED): 1.0,
}

Loss = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[Tensor, Tensor], float]


def our_model() -> Decoder:
    """Build our decoder with the shapes above, initialized."""
    model = Decoder(
        DecoderSpec(
            dim=DIM,
            num_layers=NUM_LAYERS,
            vocab_size=VOCAB_SIZE,
            padded_vocab_size=VOCAB_SIZE,
            tied_embeddings=True,
            positions=RotarySpec(base=BASE),
            attention=GroupedQueryAttentionSpec(
                num_heads=NUM_HEADS,
                num_kv_heads=NUM_KV_HEADS,
                head_dim=HEAD_DIM,
                bias=False,
                qk_norm=None,
                layer_scaling=False,
                dropout=0.0,
                backends=BACKENDS,
            ),
            mlp=MLPSpec(ffn_dim=FFN_DIM, activation="silu", gated=True, bias=False),
            norm=NormSpec(eps=EPS, center=False, weight=True, bias=False),
            embedding_norm=None,
            dropout=0.0,
            initialization=NormalSpec(std=STD, residual="scaled", padding_row=None),
            init_from="none",
        )
    )
    draw_weights(model, seed=0)
    return model


def reference_model(ours: Decoder) -> nn.Module:
    """Build the reference with the weights of ``ours``."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=DIM,
        intermediate_size=FFN_DIM,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=SEQUENCE_LENGTH,
        rms_norm_eps=EPS,
        tie_word_embeddings=True,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    model = transformers.LlamaForCausalLM(config)
    # Both register their parameters in the same order but for the norms, which are all ones.
    matrices = (p for p in ours.parameters() if p.dim() > 1)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.dim() > 1):
            parameter.copy_(next(matrices))
    return model


def reference_loss(model: Callable[..., Any], tokens: Tensor, targets: Tensor) -> Tensor:
    """Let the reference compute its own loss, of targets that are shifted already."""
    loss: Tensor = model(input_ids=tokens, labels=targets, shift_labels=targets).loss
    return loss


def make_step(model: nn.Module, loss_of: Loss, optimizer: torch.optim.Optimizer) -> Step:
    """Put one optimizer step together; it returns the mean loss of its microbatches."""

    def step(tokens: Tensor, targets: Tensor) -> float:
        total = 0.0
        for index in range(MICROBATCHES):
            loss = loss_of(tokens[index], targets[index]) / MICROBATCHES
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def our_step(model: Decoder) -> Step:
    """Train ``model`` with our optimizer."""
    optimizer = AdamW(
        parameters=model.named_parameters(),
        lr=LR,
        beta1=BETA1,
        beta2=BETA2,
        eps=ADAM_EPS,
        weight_decay=WEIGHT_DECAY,
        decay="matrices",
        decay_order="before",
        clip_norm=MAX_NORM,
        clip_after_tokens=0,
    )
    return make_step(model, model.loss, optimizer)


def reference_step(model: nn.Module, call: Callable[..., Any]) -> Step:
    """Train ``model``, called as ``call``, with torch's optimizer; it decays what ours does."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=LR,
        betas=(BETA1, BETA2),
        eps=ADAM_EPS,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )
    return make_step(model, partial(reference_loss, call), optimizer)


def all_steps() -> dict[str, Step]:
    """Build every side anew from the same weights."""
    first = our_model()
    compiled = our_model()
    compile_layers(compiled, "layers", recompute="none")
    reference, whole = reference_model(first), reference_model(first)
    return {
        OURS: our_step(first),
        OURS_COMPILED: our_step(compiled),
        THEIRS: reference_step(reference, reference),
        THEIRS_COMPILED: reference_step(whole, torch.compile(whole, dynamic=False)),
    }


def measure(steps: dict[str, Step]) -> tuple[dict[str, list[float]], float]:
    """Return the seconds of every step by name, and the largest difference of the losses."""
    generator = torch.Generator().manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    difference = 0.0
    for index in range(WARMUP_ROUNDS + ROUNDS):
        shape = (MICROBATCHES, SAMPLES, SEQUENCE_LENGTH + 1)
        sample = torch.randint(VOCAB_SIZE, shape, generator=generator)
        batch = sample[..., :-1].contiguous(), sample[..., 1:].contiguous()
        losses = []
        # Whoever comes second finds a warmer cache: take turns.
        for name in sorted(steps, reverse=bool(index % 2)):
            start = time.perf_counter()
            losses.append(steps[name](*batch))
            if index >= WARMUP_ROUNDS:
                seconds[name].append(time.perf_counter() - start)
        difference = max(difference, max(losses) - min(losses))
    return seconds, difference


def ratios_of(rates: dict[str, float], fastest: dict[str, float]) -> list[Ratio]:
    """Divide rates of medians, which have targets, and those of the fastest rounds."""
    medians = [
        Ratio(ours, theirs, rates[ours] / rates[theirs], at_least=least)
        for (ours, theirs), least in TARGETS.items()
    ]
    return medians + [
        Ratio(f"{ours}, fastest rounds", theirs, fastest[ours] / fastest[theirs])
        for ours, theirs in TARGETS
    ]


def main() -> int:
    """Measure, and keep the result."""
    torch.set_num_threads(THREADS)
    seconds, difference = measure(all_steps())
    tokens = MICROBATCHES * SAMPLES * SEQUENCE_LENGTH
    rates = {name: tokens / statistics.median(values) for name, values in seconds.items()}
    fastest = {name: tokens / min(values) for name, values in seconds.items()}
    context = circumstances(
        peer="transformers' LlamaForCausalLM with torch's fused AdamW, eager and compiled",
        convention="tokens of one optimizer step (forward, backward, clipping, AdamW) per "
        "second, median of interleaved rounds in one process, float32; ratios are of rates",
        shape=SHAPE,
        packages=("torch", "transformers"),
    )
    figures = {
        "tokens_per_second_median": rates,
        "tokens_per_second_fastest": fastest,
        "largest_loss_difference": difference,
    }
    return keep_result("train_step", context | figures, ratios_of(rates, fastest))


if __name__ == "__main__":
    enter(lambda words: main(), most=0)
