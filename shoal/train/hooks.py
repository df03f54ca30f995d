"""What happens around `optimizer.step()`: torch's own hooks, so that the optimizer stays the user's object.

Before: a closure is evaluated once if the strategy needs the gradient, a GradScaler's scale is taken out, gradients
that are not numbers meet the policy, and the strategy exchanges. After: the strategy takes the parameters, the step
counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from shoal.train.api import Synchroniser
from shoal.train.errors import BadOptimizer
from shoal.train.finite import WARN, Finite
from shoal.train.unit import scalar, trained

# GradScaler calls the step of an optimizer that has this mark also when it found an infinity, and leaves it the scale
# and the finding (torch/amp/grad_scaler.py). Without it, a worker with an infinity would not reach the exchange.
AMP_MARK = "_step_supports_amp_scaling"

_log = logging.getLogger("shoal.train")


class Hooks:
    """The hooks of one optimizer; `remove` leaves it as it was."""

    def __init__(
        self, optimizer: Optimizer, sync: Synchroniser | None, finite: Finite, stepped: Callable[[], None]
    ) -> None:
        if sync is not None and sync.needs_gradient and isinstance(optimizer, LBFGS):
            raise BadOptimizer(
                "LBFGS evaluates its closure many times in a step, and this strategy exchanges one gradient to a step; "
                "use it with local-sgd, easgd or gossip, or take an optimizer that steps once"
            )
        self.optimizer = optimizer
        self._sync, self._finite, self._stepped = sync, finite, stepped
        self._held: list[tuple[Tensor, Tensor]] | None = None  # gradients that are away during a skipped step
        self._warned = False
        # Torch's own, but for LBFGS, evaluate a closure once, first of all: doing it here is the same. What others do
        # is not known, so theirs is left to them unless the gradient must be exchanged.
        once = type(optimizer).__module__.startswith("torch.optim") and not isinstance(optimizer, LBFGS)
        self._evaluates = (sync is not None and sync.needs_gradient) or (finite.policy != WARN and once)
        self._marked = sync is not None and not getattr(optimizer, AMP_MARK, False)
        if self._marked:
            setattr(optimizer, AMP_MARK, True)
        if sync is None and finite.policy == WARN:  # may look behind the step as well, and has one hook less to pay for
            self._handles = [optimizer.register_step_post_hook(self._late)]
            return
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._marked:
            delattr(self.optimizer, AMP_MARK)
            self._marked = False

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        sync, overflow = self._sync, False
        changed = _evaluated(args, kwargs) if self._evaluates else None
        if sync is not None:
            overflow = _unscaled(optimizer)
            if not self._warned:
                self._warn_if_none(optimizer)
        if overflow or not self._finite.allows(optimizer):
            self._hold(optimizer)
        if sync is not None:
            sync.before_step(optimizer, self._held is not None)
        for parameter, _ in self._held or ():
            parameter.grad = None  # the zeros were for the others: momentum must not move what is skipped here
        return changed

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._sync is not None:
            self._sync.after_step(optimizer)
        if self._held is not None:
            for parameter, grad in self._held:
                parameter.grad = grad
            self._held = None
        self._stepped()

    def _late(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._finite.allows(optimizer)
        self._stepped()

    def _hold(self, optimizer: Optimizer) -> None:
        """Takes the gradients away for this step. Zeros stand for them where the strategy exchanges gradients: the
        others wait for this one's. Elsewhere nothing stands there, and the optimizer leaves the parameters alone."""
        zeros = self._sync is not None and self._sync.needs_gradient
        self._held = []
        for parameter in trained(optimizer):
            if parameter.grad is not None:
                self._held.append((parameter, parameter.grad))
                parameter.grad = torch.zeros_like(parameter.grad) if zeros else None

    def _warn_if_none(self, optimizer: Optimizer) -> None:
        self._warned = True
        assert self._sync is not None
        if self._sync.needs_gradient and all(one.grad is None for one in trained(optimizer)):
            _log.warning(
                "%s steps without a gradient: nothing was sent to the others; is backward() called before step()?",
                type(optimizer).__name__,
            )


def _evaluated(args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The arguments of step with the closure already evaluated; None when there is none."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    with torch.enable_grad():
        loss = closure()
    if loss is not None and isinstance(loss, Tensor):
        scalar(loss, "the closure")

    def known() -> Any:
        return loss

    if len(args) > 1:
        return (args[0], known, *args[2:]), kwargs
    return args, {**kwargs, "closure": known}


def _unscaled(optimizer: Optimizer) -> bool:
    """Takes a GradScaler's scale out of the gradients, as its own `unscale_` would; whether it found an infinity."""
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if scale is not None:
        inverse = scale.double().reciprocal().float()
        with torch.no_grad():
            for one in trained(optimizer):
                if one.grad is not None:
                    one.grad.mul_(inverse.to(one.grad.device))
    if found is None:
        return False
    # Both are dealt with here. Left as they are, a fused step would skip alone what the others take, and others refuse.
    optimizer.grad_scale = optimizer.found_inf = None  # type: ignore[attr-defined]
    return bool(float(found))
