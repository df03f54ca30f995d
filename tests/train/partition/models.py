"""Small models of the common shapes, for tests of partitions; scripts in workers import them too."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH, LENGTH = 12, 8, 6


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(WIDTH, 16),
            nn.Tanh(),
            nn.Linear(16, 16),
            nn.GELU(),
            nn.Linear(16, 16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )


class Whole(nn.Sequential):
    """Integer weights and no bias: gradients of a sum over integers are exact."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False))
        for one in self.parameters():
            one.data = torch.randint(-2, 3, one.shape).float()


class Attention(nn.Module):
    """q, k, v, o as in Llama, with positions, and a norm and a parameter of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads = 4
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q_norm = nn.LayerNorm(2)
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("angles", torch.rand(LENGTH, 2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (
            one(x).view(rows, length, self.n_heads, -1).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.q_norm(q) * self.angles * self.scale, k * self.angles
        made = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(made.transpose(1, 2).reshape(rows, length, width))  # type: ignore[no-any-return]


class Fused(nn.Module):
    """c_attn and c_proj as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (one.view(rows, length, 4, 2).transpose(1, 2) for one in self.c_attn(x).split(width, dim=2))
        weights = ((q @ k.transpose(-2, -1)) / 2).masked_fill(~mask, float("-inf")).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).contiguous().view(rows, length, width))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 16, bias=False), nn.Linear(WIDTH, 16, bias=False)
        self.down_proj = nn.Linear(16, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), attention
        self.between, self.feed = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), mask)
        return x + self.feed(self.between(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """A decoder with positions and a scale of its own, a mask made in forward, and a check on shapes."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block(Attention()), Block(Fused())])
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.gain = nn.Parameter(torch.ones(WORDS))
        if tied:
            self.lm_head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        _, length = x.shape
        assert length <= LENGTH
        if bool((x < 0).any()):  # decided by the batch, which every stage has
            raise ValueError("no such word")
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        h = self.words(x) + self.places[:length]
        for block in self.blocks:
            h = block(h, mask)
        return self.lm_head(self.norm(h)) * self.gain  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """torch's own transformer, with tied words."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.lm_head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.encoder(self.words(x)))  # type: ignore[no-any-return]


class Mixed(nn.Module):
    """Things the plan keeps: a convolution, a recurrence, a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.local = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.memory = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 16), nn.Linear(16, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.local(self.words(x).transpose(1, 2)).transpose(1, 2)
        h, _ = self.memory(h)
        return self.fc2(torch.relu(self.fc1(h)))  # type: ignore[no-any-return]


def numbers(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, generator=dice), torch.randn(rows, 4, generator=dice)


def wholes(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(-2, 3, (rows, 4), generator=dice).float() for _ in range(2))  # type: ignore[return-value]


def words(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, WORDS, (rows, LENGTH), generator=dice) for _ in range(2))  # type: ignore[return-value]


def word_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def whole_loss(output: Tensor, target: Tensor) -> Tensor:
    """Its gradient by the output is the target: no rounding anywhere with powers of two."""
    return (output * target).sum(1).mean()
