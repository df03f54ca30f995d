"""Batch normalisation over the batches of all workers: their sums are added before mean and variance are taken.

Both sums pass through an all-reduce that has a gradient, so backward needs no code of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import SUM
from shoal.adapters.hvd.torch.direct import allreduce


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """As `torch.nn.BatchNorm1d`, `2d` and `3d`, for two or more dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training or basics.size() == 1:
            return super().forward(input)
        mean, variance, count = self._moments(input)
        if self.track_running_stats:
            self._remember(mean.detach(), variance.detach(), float(count))
        shape = [1, -1] + [1] * (input.dim() - 2)
        normal = (input - mean.view(shape)) / torch.sqrt(variance.view(shape) + self.eps)
        if not self.affine:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def _moments(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Over everything but the channels, of all workers: mean, biased variance, number of values."""
        others = [0, *range(2, input.dim())]
        sums = torch.cat([input.sum(others), (input * input).sum(others), input.new_full((1,), self._values(input))])
        every = allreduce(sums, op=SUM)
        channels, count = input.shape[1], every[-1].detach()
        mean = every[:channels] / count
        return mean, every[channels:-1] / count - mean * mean, count

    def _values(self, input: Tensor) -> float:
        return input.numel() / input.shape[1]

    def _remember(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * count / max(1.0, count - 1), share)
