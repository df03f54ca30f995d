"""Text made of words drawn at random, whose entropy is known, and a character-level GPT small enough for one core.

A word is drawn independently of the others, the k-th most frequent with probability ∝ 1/k; nobody can predict a
letter of this text better than with H(word) / E(length + 1) nats, and a model gets there by learning to spell.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WORDS, LETTERS = 200, 16
SYMBOLS = LETTERS + 1  # and a space
CONTEXT = 24
WIDTH, LAYERS, HEADS = 48, 2, 4


@lru_cache
def words() -> tuple[list[Tensor], Tensor]:
    """The words, each with a space at its end, and their probabilities."""
    chance = torch.Generator().manual_seed(5)
    known: dict[tuple[int, ...], None] = {}
    while len(known) < WORDS:
        length = int(torch.randint(2, 8, (), generator=chance))
        known[tuple(torch.randint(1, SYMBOLS, (length,), generator=chance).tolist())] = None
    ranks = torch.arange(1, WORDS + 1, dtype=torch.float64)
    return [torch.tensor([*word, 0]) for word in known], (1 / ranks) / (1 / ranks).sum()


def entropy() -> float:
    """Nats per letter: the least loss there can be with an endless context."""
    known, shares = words()
    lengths = torch.tensor([float(len(word)) for word in known], dtype=torch.float64)
    return float(-(shares * shares.log()).sum() / (shares * lengths).sum())


@lru_cache
def text(seed: int, length: int) -> Tensor:
    known, shares = words()
    chance = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(shares, length // 3 + 1, replacement=True, generator=chance)  # a word has three at least
    return torch.cat([known[one] for one in drawn.tolist()])[:length]


def batch(source: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pieces of the text, and the same moved on by one letter."""
    begins = torch.randint(0, len(source) - CONTEXT, (size, 1), generator=torch.Generator().manual_seed(seed))
    places = begins + torch.arange(CONTEXT)
    return source[places], source[places + 1]


class Block(nn.Module):
    """Attention to what came before, then a small net, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.joint(self.before(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.net(self.after(x))


class GPT(nn.Module):
    """A transformer over letters."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.letters, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS)
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=1 / math.sqrt(WIDTH))

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places.weight[: letters.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    def loss(self, letters: Tensor, following: Tensor) -> Tensor:
        return cross_entropy(self(letters).flatten(0, 1), following.flatten())
