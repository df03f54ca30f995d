"""The user's model, whose forward takes another way: the object stays, its class becomes a subclass made for it.

`isinstance`, `state_dict`, hooks and attributes are the user's as before. Copies and pickles are of the plain class: a
copy is a model of its own that nobody exchanges. (FSDP2 changes classes the same way.)
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.jit import ScriptModule

Forward = Callable[..., Any]
NEW, AGAIN = copyreg.__newobj__, copyreg._reconstructor  # type: ignore[attr-defined]


class Route:
    """The change of one model, and what takes it back. `plain` calls the forward it had."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._class = type(model)
        self._own: Any = model.__dict__.get("forward")  # torch.compile puts one on the object itself
        self.plain: Forward = self._own or functools.partial(self._class.forward, model)

    @staticmethod
    def possible(model: nn.Module) -> bool:
        """Scripts run a forward that is no Python; and a class may refuse to have subclasses."""
        if isinstance(model, ScriptModule):
            return False
        try:
            _subclass(type(model), model, model.forward)
        except Exception:  # whatever its metaclass or __init_subclass__ says
            return False
        return True

    def take(self, through: Forward) -> None:
        """From now on calling the model calls `through`, after its forward pre-hooks and before its forward hooks."""
        self.model.__dict__.pop("forward", None)
        self.model.__class__ = _subclass(self._class, self.model, through)

    def leave(self) -> None:
        """The model is as it was. Harmless twice."""
        self.model.__class__ = self._class
        if self._own is not None:
            self.model.__dict__["forward"] = self._own


def _subclass(plain: type[nn.Module], model: nn.Module, through: Forward) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not model:
            return plain.forward(self, *args, **kwargs)
        return (uncompiled if torch.compiler.is_compiling() else through)(*args, **kwargs)

    def reduce_ex(self: nn.Module, protocol: Any) -> Any:
        """What copy and pickle make: one of the plain class."""
        made = plain.__reduce_ex__(self, protocol)
        if not isinstance(made, tuple) or made[0] is not NEW or made[1][0] is not routed:
            return made
        # Not __newobj__ with another class: pickle insists that it is the object's own.
        return (AGAIN, (plain, object, None), *made[2:])

    @_disable_dynamo  # an exchange cannot be traced; the forward that it calls may be compiled already
    def uncompiled(*args: Any, **kwargs: Any) -> Any:
        return through(*args, **kwargs)

    named = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    made_by: Any = type(plain)  # its metaclass
    routed: type[nn.Module] = made_by(
        plain.__name__, (plain,), {**named, "forward": forward, "__reduce_ex__": reduce_ex}
    )
    return routed
