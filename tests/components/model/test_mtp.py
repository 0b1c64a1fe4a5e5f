"""Multi-token prediction against the formula of the report, position by position."""

from collections.abc import Iterator, Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.nn.functional import cross_entropy, silu

from components.config.model_spec.mtp import MTPSpec
from components.data.samples import LossMask
from components.distributed.mesh import build_mesh
from components.engine.microbatch_forward import StageForward, number_documents
from components.model.decoder import Decoder
from components.model.mtp import MTPTargets
from tests.components.distributed.tensor_cases import Parts, randomized
from tests.components.model.comparison import gradient_of
from tests.recipes.compositions import compose

EOD, WEIGHT, LENGTH = 7, 0.3, 12
HEADS, HEAD_DIM, EPS = 4, 6, 1e-5
MTP = MTPSpec(depth=2, loss_weight=WEIGHT)
PARTS = Parts(num_heads=HEADS, num_kv_heads=HEADS, mtp=MTP)
KEY = "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, depth: "
MASKED = ("data.goldfish={one_in: 4, window_tokens: 3}", "data.loss_after_eod=false")
DOCUMENTS = "data.document_mask=true"
PACKED = "data.packing=best_fit"


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def turned(x: Tensor) -> Tensor:
    """Rotate heads, (batch, seq, heads, head_dim), by their positions."""
    half = HEAD_DIM // 2
    angle = torch.arange(x.shape[1])[:, None] / 10_000 ** (torch.arange(half) / half).double()
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


def block(x: Tensor, weights: Mapping[str, Tensor], seen: Tensor) -> Tensor:
    """Compute a Llama layer densely; ``seen`` are the visible pairs."""
    given = normed(x, weights["attention_norm.weight"])
    query, key, value = (
        (given @ weights[f"attention.{name}.weight"].T).unflatten(-1, (HEADS, HEAD_DIM))
        for name in ("query", "key", "value")
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", turned(query), turned(key)) / HEAD_DIM**0.5
    mixed = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    heads = torch.einsum("bhqk,bkhd->bqhd", mixed, value).flatten(-2)
    x = x + heads @ weights["attention.output.weight"].T
    given = normed(x, weights["mlp_norm.weight"])
    gate, up = (given @ weights[f"mlp.{name}.weight"].T for name in ("gate", "up"))
    return x + (silu(gate) * up) @ weights["mlp.down.weight"].T


def states_of(decoder: Decoder, rows: Tensor, documents: Tensor | None) -> Iterator[Tensor]:
    """Return the states of the model and of each depth for rows of length + 1 tokens.

    The report's equation 21 has the state first: W [RMS(h_i); RMS(emb(t_(i + k)))].
    """
    weights = dict(decoder.named_parameters())
    found: list[Tensor] = []
    hook = decoder.final_norm.register_forward_hook(lambda *a: found.append(a[2]))  # type: ignore[union-attr]  # not None here
    decoder(rows[:, :-1], documents=documents)
    hook.remove()
    length = rows.shape[1] - 1
    seen = torch.ones(length, length).tril().bool()[None]
    if documents is not None:
        seen = seen & (documents[:, :, None] == documents[:, None])
    (state,) = found
    yield state
    for k in (1, 2):
        name = f"mtp.{decoder.num_layers + k - 1}"
        # No counted position reads beyond the end of a row.
        read = torch.stack([rows[:, min(i + k, length)] for i in range(length)], 1)
        embedded = normed(
            weights["embedding.weight"][read], weights[f"{name}.embedding_norm.weight"]
        )
        before = normed(state, weights[f"{name}.hidden_norm.weight"])
        of_embedding, of_state = weights[f"{name}.projection.weight"].chunk(2, 1)
        in_the_reports_order = torch.cat((of_state, of_embedding), 1)
        given = torch.cat((before, embedded), -1) @ in_the_reports_order.T
        start = f"{name}.layer."
        inner = {
            key[len(start) :]: one for key, one in weights.items() if key.startswith(start)
        }
        state = normed(block(given, inner, seen), weights[f"{name}.final_norm.weight"])
        yield state


def expected_losses(decoder: Decoder, batch: Tensor, words: tuple[str, ...]) -> list[Tensor]:
    """Average the loss of each depth over its counted targets."""
    masked = MASKED[0] in words
    of_goldfish = {"one_in": 4 * masked, "window_tokens": 3}
    padded = PACKED in words
    mask = LossMask(**of_goldfish, after_eod=not masked, eod_id=EOD, padded=padded)
    head = decoder.embedding if decoder.head is None else decoder.head
    assert head is not None
    terms: list[list[Tensor]] = [[], [], []]
    for rows in batch:
        numbers = number_documents(rows[:, :-1], EOD) if DOCUMENTS in words else None
        counted, length = mask(rows), rows.shape[1] - 1
        for k, state in enumerate(states_of(decoder, rows, numbers)):
            for row in range(len(rows)):
                for i in range(length - k):
                    apart = numbers is not None and numbers[row, i] != numbers[row, i + k]
                    if counted[row, i + k] and not apart:
                        logits = state[row, i] @ head.weight.T
                        terms[k].append(cross_entropy(logits, rows[row, i + k + 1]))
    return [torch.stack(one).mean() for one in terms]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "words",
    [(), (*MASKED, DOCUMENTS), (PACKED, DOCUMENTS)],
    ids=["all targets", "masked", "packed"],
)
def test_losses_and_gradients_equal_the_formula(words: tuple[str, ...], tied: bool) -> None:
    recipe = compose("teuken7b", "scale=mini", *words, f"{KEY}2, loss_weight: 0.3}}")
    decoder = randomized(PARTS._replace(tied=tied))
    batch = torch.randint(0, 60, (3, 2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    batch[0, :, ::4] = EOD
    batch[1, :, -5:] = EOD  # padding of packed rows
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    device = torch.device("cpu")
    mesh = build_mesh("cpu", recipe.parallelism)
    compute = StageForward(recipe=recipe, mesh=mesh, device=device, eod_id=EOD)
    compute.start_step(0, 3)
    compute.count_targets(batch)
    with torch.autocast("cpu", enabled=False):
        for number, rows in enumerate(batch):
            (loss,) = compute(decoder, (rows[:, :-1],), rows, number)
            torch.autograd.backward(loss / 3)
    figures = compute.share_of_means()
    dist.destroy_process_group()
    found = {name: gradient_of(one).clone() for name, one in decoder.named_parameters()}
    decoder.zero_grad()
    main, *depths = expected_losses(decoder, batch, words)
    further = torch.stack(depths).mean()
    torch.testing.assert_close(figures[[0, 4]], torch.stack([main, further]).detach())
    torch.autograd.backward(main + WEIGHT * further)
    for name, one in decoder.named_parameters():
        torch.testing.assert_close(found[name], gradient_of(one), msg=name)


def test_held_out_loss_uses_only_the_main_head() -> None:
    plain, more = randomized(PARTS._replace(mtp=None)), randomized(PARTS)
    more.load_state_dict(plain.state_dict(), strict=False)
    tokens = torch.randint(0, 60, (2, LENGTH + 1))
    given = tokens[:, :-1], tokens[:, 1:]
    assert plain.compute_loss(*given) == more.compute_loss(*given)
    nothing = torch.zeros(2, LENGTH, dtype=torch.bool)
    further = [MTPTargets(*given, nothing)] * 2
    losses = more(given[0], targets=given[1], further=further)
    assert losses.tolist() == [plain.compute_loss(*given).item(), 0.0, 0.0]
