"""The two seams: *synchronisation* (what is exchanged around a step) and *partition* (who holds which part).

A strategy is one file with its paper, its invariant and its cost. It is given a `Setting` and never reads the
environment, opens a rendezvous or keeps a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoal.train.group.api import Group
    from shoal.train.seeing import Seeing
    from shoal.train.world import World

State = Mapping[
    str, Any
]  # tensors, numbers, strings, lists and maps of these: what a checkpoint can hold without pickle


@dataclass(frozen=True)
class Setting:
    """What a strategy is given to work with."""

    world: World
    options: Mapping[str, Any]  # every option of `shoal.strategy`, with its value
    group: Callable[[], Group]  # the group of all workers, made when first asked for
    seeing: Seeing  # timings, bytes, staleness, named waits
    unit: int = 0  # which call of `wrap` this is: 0, 1, …; keeps two models of one script apart
    epoch: Callable[[], int] = lambda: 0  # the epoch the script is in


class Synchroniser(Protocol):
    """What is exchanged around a step. One object per call of `wrap`; all calls come from the training thread."""

    needs_gradient: bool  # a closure is evaluated before `before_step`, not inside the optimizer's step

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        """Agrees with the peers that the models are alike, and makes them start equal. Returns the model to call; its
        `state_dict()` is the user's. Raises Disagreement that names the first difference."""
        ...

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        """The gradients of the optimizer's parameters are final. What must not be stepped here is taken away
        (`grad = None`) and given back in `after_step`. With `skipped` this worker takes no step: it shows the others
        zeros, and nothing moves for its sake (momentum, counts of steps)."""
        ...

    def after_step(self, optimizer: Optimizer) -> None:
        """The optimizer has stepped. Returns when the next forward may begin."""
        ...

    def finish(self) -> None:
        """The script is done: flushes, leaves the others in good order, and frees everything. Harmless twice."""
        ...

    def state(self) -> State:
        """What a checkpoint must hold beside model and optimizer: residuals, outer momentum, clocks. Collective."""
        ...

    def load(self, state: State) -> None:
        """The opposite of `state`, after `attach`; also for a state of another number of workers."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """For `run.explain()`: `learning_rate` (who scales it), `staleness` (what to expect), `bytes_per_step` (sent by
        this worker), `buffers` (what happens to BatchNorm and the like), and what else is worth saying."""
        ...


class Partition(Protocol):
    """Who holds which part. One object per call of `wrap`."""

    replica: int  # which data-parallel copy this worker belongs to
    replicas: int  # how many there are: `run.shard` cuts the data by these two

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        """Cuts the model and points the optimizers' groups at the parts. Returns the model to call."""
        ...

    def step(self, model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Sequence[Any], target: Any) -> Tensor:
        """Forward and backward of one batch, gradients ready for the optimizers. Returns the loss, the same number on
        every worker that has one."""
        ...

    def model_state(self, model: nn.Module) -> Mapping[str, Tensor]:
        """The whole model, on every worker's call, whole tensors under the user's names. Collective."""
        ...

    def state(self) -> State:
        """The optimizers' state whole, named by parameter. Collective."""
        ...

    def load(self, model_state: Mapping[str, Tensor], state: State) -> None:
        """The opposite, also for another number of workers. Collective."""
        ...

    def finish(self) -> None: ...

    def facts(self) -> Mapping[str, Any]: ...
