"""Which gradients have grown since they were last exchanged. Every parameter notes itself when backward adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Growth:
    """The parameters of one model, in the order in which they grew; one that grew twice stands there twice."""

    def __init__(self) -> None:
        self._grown: list[Tensor] = []
        self._handles: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._grown)

    def watch(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """From now on. `list.append` itself is the hook: it runs for every parameter in every backward. Returns those
        that were not watched before."""
        new = [one for one in parameters if one.requires_grad and id(one) not in self._handles]
        for one in new:
            self._handles[id(one)] = one.register_post_accumulate_grad_hook(self._grown.append)  # type: ignore[no-untyped-call]
        return new

    def grown(self) -> set[int]:
        """By identity."""
        return {id(one) for one in self._grown}

    def exchanged(self, parameters: Sequence[Tensor] | None = None) -> None:
        """These have not grown since, or none has."""
        if parameters is None:
            self._grown.clear()
        else:
            these = {id(one) for one in parameters}
            self._grown[:] = [one for one in self._grown if id(one) not in these]

    def close(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles = {}
