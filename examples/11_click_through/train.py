"""Click-through rates with a DeepFM: ten million rows on the servers, of which each step moves a few thousand.

    shoal run examples/11_click_through/train.py --workers 2 --servers 2 --strategy ps-async
    python examples/11_click_through/train.py --rows 100000

The clicks are made up from a model that is known, so the best loss anyone can reach is known as well: the last line
says how near the training came to it. The sparse rows live in `train.Embedding`; no worker ever holds the table.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

from shoal import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the table: what ids are taken from")
parser.add_argument("--fields", type=int, default=8, help="ids in one sample: who, what, where …")
parser.add_argument("--values", type=int, default=500, help="ids that a field really takes")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--dim", type=int, default=8)
options = parser.parse_args()


class Clicks:
    """Clicks without end: each id has a weight, and a click is as likely as the weights of its ids say."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(7)
        self.ids = torch.randint(0, options.rows, (options.fields, options.values), generator=dice)
        self.weights = torch.randn(options.fields, options.values, generator=dice)

    def batch(self, dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids, clicks, and how likely each click was."""
        # Few values are common and most are rare, as in life.
        picked = (torch.rand(options.batch, options.fields, generator=dice) ** 3 * options.values).long()
        field = torch.arange(options.fields).expand_as(picked)
        chance = self.weights[field, picked].sum(1).sub(1).sigmoid()
        return self.ids[field, picked], torch.bernoulli(chance, generator=dice), chance


class DeepFM(nn.Module):
    """A weight for every id, the products of all pairs of ids, and a deep part over their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = train.Embedding(options.rows, 1 + options.dim, optimizer="adagrad", lr=0.1)
        self.deep = nn.Sequential(nn.Linear(options.fields * options.dim, 32), nn.ReLU(), nn.Linear(32, 1))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)
        wide, vectors = rows[..., 0].sum(1), rows[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        return self.bias + wide + pairs + self.deep(vectors.flatten(1)).squeeze(1)


torch.manual_seed(0)
clicks, model = Clicks(), DeepFM()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)

with train.start() as run:
    model, optimizer = run.wrap(model, optimizer)
    dice = torch.Generator().manual_seed(1000 + run.rank)  # every worker sees other clicks
    for _ in range(options.steps):
        ids, clicked, _ = clicks.batch(dice)
        loss = functional.binary_cross_entropy_with_logits(model(ids), clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.report(loss=loss)

    model.eval()
    with torch.no_grad():
        unseen = [clicks.batch(torch.Generator().manual_seed(seed)) for seed in range(20)]
        ids, clicked, chance = (torch.cat(part) for part in zip(*unseen, strict=True))
        reached = functional.binary_cross_entropy_with_logits(model(ids), clicked).item()
        best = functional.binary_cross_entropy(chance, clicked).item()
        blind = functional.binary_cross_entropy(clicked.mean().expand_as(clicked), clicked).item()
    print(f"loss {reached:.4f}, the best there is {best:.4f}, knowing nothing {blind:.4f}", flush=True)
    print(f"learned {(blind - reached) / (blind - best):.0%} of what can be learned", flush=True)
