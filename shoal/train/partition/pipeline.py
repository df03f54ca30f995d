"""`pipeline`: the layers are cut into stages, one after another over workers, and micro-batches move through them.

Papers: GPipe (1811.06965), PipeDream's 1F1B (1806.03377), interleaved stages (Narayanan et al. 2021, 2104.04473).
Invariant: gradients are those of one process that was given the whole batch (the loss is a mean over it, or says that
it is a sum); after a step the stages put together equal that process.
Cost, with s stages and m micro-batches: a worker idles (s-1)/(m+s-1) of the time (interleaved: half of it); the
activations at a cut are sent once forward, their gradients once backward.

The cut is made at the first batch, because only a batch tells what a layer costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as tree

from shoal.train import process_group
from shoal.train.api import Setting, State
from shoal.train.errors import BadModel
from shoal.train.partition import agree, held, mesh, split, whole
from shoal.train.partition.copies import average
from shoal.train.partition.crew import Crew
from shoal.train.partition.relay import Post, Relay
from shoal.train.partition.schedule import Schedule
from shoal.train.partition.stage import Stage
from shoal.train.partition.trace import Chain, Gates, trace
from shoal.train.unit import scalar


class Pipeline:
    """The partition of one call of `wrap`."""

    def __init__(self, setting: Setting) -> None:
        self._world, self._seeing, self._options, self._epoch = (
            setting.world,
            setting.seeing,
            setting.options,
            setting.epoch,
        )
        self._crew = Crew.of(self._options, self._world.size, self._world.rank)
        self.replica, self.replicas = self._crew.copy, self._crew.copies
        self._model: nn.Module | None = None
        self._optimizers: tuple[Optimizer, ...] = ()
        self._stages: dict[int, Stage] = {}
        self._chain = Chain()
        self._spans: list[tuple[int, int]] = []
        self._checked: int | None = None
        self._bytes: int | None = None  # sent in the last step, gradients of copies included

    # -- wrap ----------------------------------------------------------------------------------------------------------

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        self._device = self._crew.device(next(model.parameters()).device, mesh.device_kind(model))
        whole.elementwise(optimizers, "pipeline")
        self._gates = Gates(model, self._options["split"] == "marks")
        split.enough(list(self._gates.units), self._crew.stages)
        self._optimizers = tuple(optimizers)
        self._known = whole.names_of(model)
        self._groups = [
            [[self._known[id(p)] for p in group["params"]] for group in one.param_groups] for one in optimizers
        ]
        with process_group.joining(self._world, "wrap of pipeline"):
            agree.same_model(model)
            agree.same_values(model)
            self._crew.gather()
            agree.same_chance(self._crew.line, self._crew.group)
            seed = agree.gather(torch.initial_seed())[0]
        self._dice = torch.Generator().manual_seed((seed + 1 + self._world.rank) % 2**63).get_state()
        self._model, self._forward = model, model.forward
        model.forward = self._plain_forward
        return model

    def _cut(self, inputs: Sequence[Any], count: int) -> None:
        """Cuts the model by what this micro-batch costs. Everybody does as worker-0 finds."""
        model, crew = self._model, self._crew
        assert model is not None
        there = next(model.parameters()).device  # the model has not moved to this worker's device yet
        sample = tree.tree_map_only(Tensor, lambda one: one.to(there), tuple(inputs))
        chain = self._chain = trace(model, self._forward, self._gates, sample)
        if self._options["split"] == "marks":
            cuts = split.marked(chain.units, crew.stages, chain.blocked)
        else:
            costs = [unit.cost(count) for unit in chain.units]
            cuts = split.balanced(costs, crew.stages, chain.blocked, crew.weights)
        self._spans = split.spans(agree.gather(cuts)[0], len(chain.units))
        stages = held.stage_of(model, self._gates, chain, self._spans)
        held.drop(model, self._gates, stages, crew.mine)
        held.move(model, self._device)
        whole.point(self._optimizers, self._known, model)
        held.show_whole(model, stages, crew.holders)
        self._stages = {
            one: Stage(self._forward, self._gates, chain, *self._spans[one], self._device) for one in crew.mine
        }
        self._engine = self._built()

    def _built(self) -> Schedule | Relay:
        crew, name = self._crew, str(self._options["schedule"])
        if crew.relayed:
            return Relay(name, self._stages[crew.stage], (crew.stage, crew.member), crew.ranks, self._device)
        return Schedule(name, self._stages, crew.stages, self._device, crew.group)

    # -- a step --------------------------------------------------------------------------------------------------------

    def step(self, model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Sequence[Any], target: Any) -> Tensor:
        with process_group.waiting("step of pipeline", process_group.others(self._world)):
            self._check(inputs, target)
            inputs, target = tree.tree_map_only(Tensor, lambda one: one.to(self._device), (tuple(inputs), target))
            count = self._parts(inputs)
            batches, targets = self._divided(inputs, count), self._divided(target, count)
            if not self._stages:
                self._cut(batches[0], count)
            share = 1 if getattr(loss_fn, "reduction", "mean") == "sum" else count

            def loss(output: Any, number: int) -> Tensor:
                return scalar(loss_fn(output, targets[number]), "run.step") / share

            with self._own_dice():
                losses = self._engine.run(batches, loss)
            self._bytes = sum(stage.travels for stage in self._stages.values()) * count // self._crew.turns
            return self._agreed(losses)

    def _agreed(self, losses: Sequence[Tensor]) -> Tensor:
        """Averages gradients over the copies of the stage, and tells everybody the loss."""
        crew, parameters = self._crew, self._mine()
        if crew.beside is not None:
            size = average(parameters, crew.beside, 1.0 if crew.relayed else crew.copies)
            width = crew.widths[crew.stage]
            self._bytes = (self._bytes or 0) + int(2 * (width - 1) / width * size)
        self._seeing.sent(self._bytes or 0, self._bytes or 0)
        total = torch.zeros(2, dtype=torch.float64)
        total[0] = sum(float(one.detach()) for one in losses) / crew.copies
        wrong = self._options["nan"] != "warn" and not all(
            bool(p.grad.isfinite().all()) for p in parameters if p.grad is not None
        )
        total[1] = float(wrong)
        dist.all_reduce(total)
        if total[1] and not wrong:  # a step that one stage skips or stops at, all must
            for one in parameters[:1]:
                one.grad = torch.full_like(one, float("nan"))
        return total[0].to(torch.float32)

    def _mine(self) -> list[Tensor]:
        assert self._model is not None
        return [one for one in self._model.parameters() if not one.is_meta and one.requires_grad]

    def _parts(self, inputs: Any) -> int:
        self._rows = next((one.shape[0] for one in tree.tree_leaves(inputs) if isinstance(one, Tensor) and one.ndim), 0)
        if not self._rows:
            raise BadModel(
                "run.step was given no tensor with a batch to divide: pass the batch, run.step(model, loss_fn, x, y)"
            )
        return split.microbatches(self._rows, int(self._options["microbatches"]) or 2 * self._crew.stages)

    def _divided(self, value: Any, count: int) -> list[Any]:
        """Tensors with as many rows as the batch are divided, everything else goes along with every part."""
        leaves, spec = tree.tree_flatten(value)
        rows = [
            one.chunk(count) if isinstance(one, Tensor) and one.ndim and one.shape[0] == self._rows else [one] * count
            for one in leaves
        ]
        return [tree.tree_unflatten([row[number] for row in rows], spec) for number in range(count)]

    def _check(self, inputs: Any, target: Any) -> None:
        """Once an epoch: the first stage reads the inputs and the last one the target, of one batch."""
        if self._checked != self._epoch():
            self._checked = self._epoch()
            agree.same_batch([*inputs, target], self._crew.line, self._crew.group)

    @contextmanager
    def _own_dice(self) -> Iterator[None]:
        """Stages throw different dice differently often; the script's own, which shuffle the data, must stay alike."""
        theirs = torch.get_rng_state()
        torch.set_rng_state(self._dice)
        try:
            yield
        finally:
            self._dice = torch.get_rng_state()
            torch.set_rng_state(theirs)

    # -- forward without training --------------------------------------------------------------------------------------

    def _plain_forward(self, *inputs: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            raise BadModel(
                "under pipeline a batch goes through the stages in parts, and model(x) cannot do that: "
                "call loss = run.step(model, loss_fn, x, y), or evaluate under torch.no_grad()"
            )
        if not self._stages:
            return self._forward(*inputs, **named)
        with process_group.waiting("forward of pipeline", process_group.others(self._world)), self._own_dice():
            return self._passed(*tree.tree_map_only(Tensor, lambda one: one.to(self._device), (inputs, named)))

    def _passed(self, inputs: Any, named: Any) -> Any:
        """The whole batch from stage to stage; what the last one makes, on all workers of the pipeline. Collective."""
        crew, post, out = self._crew, Post(self._device), None
        if crew.member == 0:
            for number in sorted(self._stages):
                before = crew.holder(number - 1)
                out = self._stages[number].run(inputs, lambda like: post.receive(like, before, 0), **named)  # noqa: B023
                if not self._stages[number].is_last:
                    post.send(out, crew.holder(number + 1), 0)
        post.flush()
        answer = agree.share(out, crew.holder(crew.stages - 1), crew.group)
        return tree.tree_map_only(Tensor, lambda one: one.to(self._device), answer)

    # -- state ---------------------------------------------------------------------------------------------------------

    def model_state(self, model: nn.Module) -> Mapping[str, Tensor]:
        with process_group.waiting("state_dict of pipeline", process_group.others(self._world)):
            return {name: one.detach().cpu() for name, one in model.state_dict().items()}

    def state(self) -> State:
        assert self._model is not None
        with process_group.waiting("optimizer state of pipeline", process_group.others(self._world)):
            mine = whole.export(self._optimizers, whole.names_of(self._model))
            if not self._stages:
                return mine
            tellers = sorted(set(self._crew.holders.values()))
            return whole.merge([agree.share(mine, rank) for rank in tellers], self._groups)

    def load(self, model_state: Mapping[str, Tensor], state: State) -> None:
        assert self._model is not None
        self._model.load_state_dict(dict(model_state))
        if state:
            whole.restore(self._optimizers, whole.names_of(self._model), state)

    def finish(self) -> None:
        if self._model is not None:
            self._gates.remove()
            self._model = None
            process_group.leave()

    def facts(self) -> Mapping[str, Any]:
        crew, count = self._crew, int(self._options["microbatches"]) or 2 * self._crew.stages
        costs = [unit.cost(count) for unit in self._chain.units]
        names, every = [unit.name for unit in self._chain.units], sum(costs) or 1.0
        return {
            "learning_rate": f"yours: the gradient is the mean over the batch and {crew.copies} copies",
            "staleness": 0,
            "bytes_per_step": "known after the first batch" if self._bytes is None else self._bytes,
            "buffers": "each stage keeps its own; a checkpoint holds those of the first copy",
            "idle": f"{(crew.stages - 1) / (count + crew.stages - 1):.0%} of a step at most, {count} micro-batches",
            "stages": [
                f"{names[first]} … {names[end - 1]}: {sum(costs[first:end]) / every:.0%}" for first, end in self._spans
            ]
            or "cut at the first batch",
        }
