"""A decoder-only transformer, composed from parts that a recipe chooses.

Single-device code: parallelism is poured over it from outside. Parameter names are global, also
where a pipeline stage holds only some of the layers, and map onto a Hugging Face Llama thus:

    embedding                                       model.embed_tokens
    layers.N.attention_norm                         model.layers.N.input_layernorm
    layers.N.attention.{query,key,value,output}     model.layers.N.self_attn.{q,k,v,o}_proj
    layers.N.mlp_norm                               model.layers.N.post_attention_layernorm
    layers.N.mlp.{gate,up,down}                     model.layers.N.mlp.{gate,up,down}_proj
    final_norm                                      model.norm
    head (absent where tied)                        lm_head
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from components.errors import RecipeError
from components.model.attention import Attention
from components.model.initialization import Normal
from components.model.loss import cross_entropy
from components.model.positions import Rotary, Rotation


class Layer(nn.Module):
    """Add attention, then an MLP, to the residual stream, each fed through its own norm."""

    def __init__(
        self,
        *,
        dim: int,
        attention: Callable[..., Attention],
        mlp: Callable[..., nn.Module],
        norm: Callable[..., nn.Module],
    ) -> None:
        super().__init__()
        self.attention_norm = norm(dim=dim)
        self.attention = attention(dim=dim)
        self.mlp_norm = norm(dim=dim)
        self.mlp = mlp(dim=dim)

    def forward(
        self, hidden: Float[Tensor, "batch seq dim"], rotation: Rotation
    ) -> Float[Tensor, "batch seq dim"]:
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation)
        after: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return after


class Decoder(nn.Module):
    """Predict each next token from all before it.

    ``embedding``, ``final_norm``, ``head`` and any of the ``layers`` may be taken away (set
    to ``None``, deleted by their key) to make a pipeline stage of the rest. A tied last stage
    keeps the embedding, whose rows are its head.

    Raises:
        RecipeError: fewer rows than tokens, no layer, or heads that the positions refuse.
    """

    embedding: nn.Embedding | None
    final_norm: nn.Module | None
    head: nn.Linear | None

    def __init__(
        self,
        *,
        dim: int,
        num_layers: int,
        vocab_size: int,
        padded_vocab_size: int,
        tied_embeddings: bool,
        positions: Rotary,
        attention: Callable[..., Attention],
        mlp: Callable[..., nn.Module],
        norm: Callable[..., nn.Module],
        initialization: Normal,
    ) -> None:
        super().__init__()
        _check_sizes(num_layers, vocab_size, padded_vocab_size)
        self.num_layers = num_layers
        self.vocab_size = vocab_size
        self.initialization = initialization
        self.positions = positions
        self.embedding = nn.Embedding(padded_vocab_size, dim)
        layers = [
            Layer(dim=dim, attention=attention, mlp=mlp, norm=norm) for _ in range(num_layers)
        ]
        self.layers = nn.ModuleDict({str(index): layer for index, layer in enumerate(layers)})
        self.final_norm = norm(dim=dim)
        # Tied, the embedding's weight is used, not shared: a shared parameter parts from its
        # twin in `to_empty`.
        self.head = None if tied_embeddings else nn.Linear(dim, padded_vocab_size, bias=False)
        self.head_dim = layers[0].attention.head_dim
        positions.check(head_dim=self.head_dim)

    def forward(
        self, inputs: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq dim"]
    ) -> Float[Tensor, "batch seq padded_vocab"] | Float[Tensor, "batch seq dim"]:
        """Return logits, or a stage's hidden states where the final norm is absent.

        ``inputs`` are tokens, or hidden states from the stage before.
        """
        hidden = inputs if inputs.is_floating_point() else self._embed(inputs)
        rotation = self.positions(hidden.shape[1], head_dim=self.head_dim, device=hidden.device)
        for layer in self.layers.values():
            hidden = layer(hidden, rotation)
        return hidden if self.final_norm is None else self._logits(self.final_norm(hidden))

    def loss(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, ""]:
        """Average the cross-entropy of ``targets``, in nats a token, over all rows."""
        # Through `self(...)`, not `self.forward(...)`: the hooks of `fully_shard` must run.
        return cross_entropy(self(tokens), targets)

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None, "tokens were given to a stage without an embedding"
        hidden: Tensor = self.embedding(tokens)
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        if self.head is None:
            assert self.embedding is not None, "a tied last stage needs the embedding's rows"
            return F.linear(hidden, self.embedding.weight)
        logits: Tensor = self.head(hidden)
        return logits


def _check_sizes(num_layers: int, vocab_size: int, padded_vocab_size: int) -> None:
    if num_layers < 1:
        raise RecipeError(
            "model.num_layers", f"{num_layers} is no layer at all", "use 1 or more"
        )
    if padded_vocab_size < vocab_size:
        raise RecipeError(
            "model.padded_vocab_size",
            f"{padded_vocab_size:,} rows cannot hold {vocab_size:,} tokens",
            f"use {vocab_size:,} or more",
        )
