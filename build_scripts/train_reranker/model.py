"""Owns the cross-encoder's forward pass: query and passage apart in the lower layers, joint in the upper.

Must not know where texts, weights or losses come from.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

MASKED = -1e4


class Layer(nn.Module):
    """One post-norm BERT layer."""

    def __init__(self, hidden: int, feed_forward: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, hidden)
        self.k = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.o = nn.Linear(hidden, hidden)
        self.ln1 = nn.LayerNorm(hidden, eps=epsilon)
        self.f1 = nn.Linear(hidden, feed_forward)
        self.f2 = nn.Linear(feed_forward, hidden)
        self.ln2 = nn.LayerNorm(hidden, eps=epsilon)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """`x` (batch, tokens, hidden); `mask` additive, broadcastable to (batch, heads, tokens, tokens)."""
        batch, tokens, hidden = x.shape
        q, k, v = (
            part(x).view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.ln1(x + self.o(seen.transpose(1, 2).reshape(batch, tokens, hidden)))
        return self.ln2(x + self.f2(functional.gelu(self.f1(x))))


class Encoder(nn.Module):
    """multilingual-e5-small whose layers from `join` on see query and passage jointly.

    `lower` is exactly the embedder up to `join`, so its states are computed once per text; `upper` and head
    are trained. A learned bias per upper layer and head (`cross`) weighs attention across the two texts. The head
    starts as `scale * cosine + bias`, that is, as the embedder itself; its other half starts at zero.
    """

    def __init__(
        self,
        *,
        join: int = 8,
        vocabulary: int = 250037,
        hidden: int = 384,
        layers: int = 12,
        heads: int = 12,
        feed_forward: int = 1536,
        positions: int = 512,
        epsilon: float = 1e-12,
    ) -> None:
        super().__init__()
        self.join = join
        self.word = nn.Embedding(vocabulary, hidden)
        self.pos = nn.Embedding(positions, hidden)
        self.typ = nn.Parameter(torch.zeros(hidden))
        self.eln = nn.LayerNorm(hidden, eps=epsilon)
        self.layers = nn.ModuleList(Layer(hidden, feed_forward, heads, epsilon) for _ in range(layers))
        self.cross = nn.Parameter(torch.full((layers - join, heads), -2.0))
        self.head1 = nn.Linear(4 * hidden, hidden)
        self.head2 = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head2.weight)
        nn.init.zeros_(self.head2.bias)
        self.scale = nn.Parameter(torch.tensor([50.0]))
        self.bias = nn.Parameter(torch.tensor([-42.5]))

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Token ids to states before the first layer."""
        return self.eln(self.word(ids) + self.pos(positions) + self.typ)

    def lower(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The frozen layers."""
        for layer in self.layers[: self.join]:
            x = layer(x, mask)
        return x

    def rest_apart(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The remaining layers on one text: what the embedder itself does."""
        for layer in self.layers[self.join :]:
            x = layer(x, mask)
        return x

    def upper(self, x: torch.Tensor, segment: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Joint layers and head.

        Args:
            x: (batch, tokens, hidden) states of the query followed by those of the passage.
            segment: (batch, tokens) 0 for the query, 1 for the passage.
            valid: (batch, tokens) 1 for a token, 0 for padding.

        Returns:
            (batch,) logits.
        """
        padding = (1.0 - valid)[:, None, None, :] * MASKED
        differ = (segment[:, :, None] != segment[:, None, :]).to(x.dtype)[:, None]
        for layer, bias in zip(self.layers[self.join :], self.cross, strict=True):
            x = layer(x, padding + differ * bias[None, :, None, None])
        in_query, in_passage = valid * (1 - segment), valid * segment
        query = functional.normalize(_mean(x, in_query), dim=-1, eps=1e-6)
        mean = _mean(x, in_passage)
        passage = functional.normalize(mean, dim=-1, eps=1e-6)
        features = torch.cat([x[:, 0], query * passage * 20, (query - passage).abs() * 5, mean], -1)
        learned = self.head2(functional.gelu(self.head1(features)))[:, 0]
        return self.scale * (query * passage).sum(-1) + self.bias + learned

    def delta(self) -> dict[str, torch.Tensor]:
        """What training changes and a pack ships: upper layers, cross bias and head, as float16."""
        own = (
            "cross",
            "head1.",
            "head2.",
            "scale",
            "bias",
            *(f"layers.{i}." for i in range(self.join, len(self.layers))),
        )
        return {k: v.detach().half().contiguous() for k, v in self.state_dict().items() if k.startswith(own)}


def _mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
