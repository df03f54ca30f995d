"""Gradients that leave during backward: which may, and which of them must be sent again at the step.

A gradient is done when its last backward before the step has written it, and nobody touches it until the step. Both are
known only afterwards: accumulation runs several backwards to a step, clipping and unscaling change gradients behind
them. So each parameter is judged by its last step: when the gradient of its n-th backward was still the same tensor
at the step, the next one leaves at its n-th backward too; else it waits for the step. What left too early is noticed
at the step and goes again: by the tensor's version, and, because writing through `.data` leaves that alone, by its
values.

Worth it where the way is long: to another host, or down from a GPU. Within a host's memory one copy at the step is
cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

WORTH = 16_384  # elements: smaller gradients are cheaper to copy all at once at the step


class Early:
    """Watches the gradients of some parameters. `leave` is called during backward with those that may go; `holds` says
    whether what left is what the gradient is now (asked for gradients on the CPU only)."""

    def __init__(
        self,
        params: Sequence[Tensor],
        leave: Callable[[int, Tensor], None],
        holds: Callable[[int, Tensor], bool],
    ) -> None:
        self.left = 0  # gradients that left in backward, since the beginning
        self.again = 0  # of those: sent again at the step
        self._params = params
        self._leave = leave
        self._holds = holds
        self._fired = [0] * len(params)  # backwards since the last step
        self._due = [0] * len(params)  # the backward at which the gradient may go; 0 for none
        self._marks: list[tuple[Tensor, int] | None] = [None] * len(params)  # the gradient and its version then
        self._seals: dict[int, Tensor] = {}  # of those that left
        self._hooks: list[RemovableHandle] = [
            one.register_post_accumulate_grad_hook(self._landing(index))  # type: ignore[no-untyped-call]
            for index, one in enumerate(params)
            if one.requires_grad and one.numel() >= WORTH
        ]

    def stale(self) -> list[int]:
        """At the step: the parameters whose gradients have yet to go. Learns from this step for the next one."""
        same = [self._unmoved(index) for index in range(len(self._params))]
        self._due = [fired if one else 0 for fired, one in zip(self._fired, same, strict=True)]
        arrived = set(self._verified([at for at in self._seals if same[at]]))
        self.again += len(self._seals) - len(arrived)
        self._fired = [0] * len(self._params)
        self._marks = [None] * len(self._params)
        self._seals.clear()
        return [index for index in range(len(self._params)) if index not in arrived]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._marks = [None] * len(self._params)

    def _landing(self, index: int) -> Callable[[Tensor], None]:
        def landed(param: Tensor) -> None:
            grad = param.grad
            if grad is None or grad.layout != torch.strided:
                return
            self._fired[index] += 1
            self._marks[index] = (grad, grad._version)
            if self._fired[index] == self._due[index]:
                self.left += 1
                self._seals[index] = _seal(grad)
                self._leave(index, grad)

        return landed

    def _unmoved(self, index: int) -> bool:
        mark = self._marks[index]
        return mark is not None and mark[0] is self._params[index].grad and mark[1] == mark[0]._version

    def _verified(self, candidates: Sequence[int]) -> list[int]:
        """Those whose values are still what left. On a GPU all seals are compared with one wait."""
        grads = {at: grad for at in candidates if (grad := self._params[at].grad) is not None}
        remote = [at for at, grad in grads.items() if grad.is_cuda]
        if remote:
            device = grads[remote[0]].device
            then = torch.stack([self._seals[at].to(device) for at in remote])
            now = torch.stack([_seal(grads[at]).to(device) for at in remote])
            remote = [at for at, same in zip(remote, (then == now).tolist(), strict=True) if same]
        return remote + [at for at, grad in grads.items() if not grad.is_cuda and self._holds(at, grad)]


_NO_SEAL = torch.zeros((), dtype=torch.int64)
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def _seal(grad: Tensor) -> Tensor:
    """A sum over the bits of a gradient on a GPU, where reading it twice costs next to nothing."""
    if not grad.is_cuda:
        return _NO_SEAL
    return grad.detach().view(_BITS[grad.element_size()]).sum(dtype=torch.int64)
