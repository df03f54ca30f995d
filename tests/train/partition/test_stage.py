"""A model in stages computes what the whole model does; where it can be cut, where not, and why. No workers needed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.train.errors import BadModel
from shoal.train.partition import held, split
from shoal.train.partition.split import MARK
from shoal.train.partition.stage import Stage
from shoal.train.partition.trace import Chain, Gates, trace
from tests.train.partition.models import WIDTH, Encoder, Gpt, Mlp, numbers, word_loss, words


def traced(model: nn.Module, *inputs: Any, marks: bool = False) -> tuple[Gates, Chain]:
    gates = Gates(model, marks)
    return gates, trace(model, model.forward, gates, inputs)


def in_stages(
    model: nn.Module, chain: Chain, gates: Gates, cuts: list[int], *inputs: Any
) -> tuple[Any, list[list[Tensor]]]:
    """All stages one after another in this process, cut from each other as between workers."""
    passed: list[list[Tensor]] = []
    out: Any = None
    for first, end in split.spans(cuts, len(chain.units)):
        came = [one.detach().requires_grad_(one.is_floating_point()) for one in out] if out is not None else []
        passed.append(came)
        stage = Stage(model.forward, gates, chain, first, end)
        out = stage.run(inputs, lambda like, came=came: came)  # type: ignore[misc]
    return out, passed


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_decoder_cut_anywhere_computes_the_same(cut: int) -> None:
    torch.manual_seed(0)
    model, (x, _) = Gpt(), words(4, 1)
    expected = copy.deepcopy(model)(x)
    gates, chain = traced(model, x)
    assert [unit.name for unit in chain.units] == ["words", "blocks.0", "blocks.1", "norm", "lm_head"]
    assert not chain.blocked and chain.homes == {"places": 0, "gain": 4}
    out, passed = in_stages(model, chain, gates, [cut], x)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert [one.shape for one in passed[1]] == [(4, 6, WIDTH)]
    gates.remove()
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)


def test_gradients_go_back_through_the_cuts() -> None:
    torch.manual_seed(0)
    model, (x, y) = Gpt(), words(4, 1)
    whole = copy.deepcopy(model)
    torch.autograd.backward(word_loss(whole(x), y))
    gates, chain = traced(model, x)
    edges, made = split.spans([1, 3], 5), []
    out: Any = None
    for first, end in edges:
        came = [one.detach().requires_grad_() for one in out] if out is not None else []
        out = Stage(model.forward, gates, chain, first, end).run((x,), lambda like, came=came: came)  # type: ignore[misc]
        made.append((came, out))
    torch.autograd.backward(word_loss(out, y))
    for (came, _), (_, before) in zip(made[:0:-1], made[-2::-1], strict=True):
        torch.autograd.backward(before, [one.grad for one in came])
    for (name, one), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


def test_a_stage_knows_what_comes_and_goes_for_any_batch_and_holds_no_more_than_its_own() -> None:
    model, (x, _) = Mlp(), numbers(8, 1)
    gates, chain = traced(model, x)
    spans = split.spans([1], len(chain.units))
    stages = held.stage_of(model, gates, chain, spans)
    held.drop(model, gates, stages, [1])
    assert [name for name, one in model.named_parameters() if not one.is_meta] == [
        "2.weight", "2.bias", "4.weight", "4.bias", "6.weight", "6.bias"
    ]  # fmt: skip
    last = Stage(model.forward, gates, chain, *spans[1])
    for rows in (8, 3, 1):
        came, out = last.shapes((x[:rows],))
        assert [one.shape for one in came] == [(rows, 16)] and [one.shape for one in out] == [(rows, 4)]
    assert last.run((x[:3],), lambda like: [torch.ones(one.shape) for one in like]).shape == (3, 4)


def test_the_dearer_layers_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 2))
    _, chain = traced(model, torch.zeros(8, 4))
    assert [unit.flops for unit in chain.units] == [2 * 8 * 4 * 64, 2 * 8 * 64 * 64, 2 * 8 * 64 * 2]
    assert [unit.parameters for unit in chain.units] == [5 * 64, 65 * 64, 65 * 2]
    assert split.balanced([unit.cost(4) for unit in chain.units], 2, chain.blocked) == [1]


def test_torchs_transformer_is_cut_between_its_layers() -> None:
    _, chain = traced(Encoder(tied=False), words(2, 1)[0])
    assert [unit.name for unit in chain.units] == ["words", "encoder.layers.0", "encoder.layers.1", "lm_head"]


class Turning(nn.Module):
    """Positions from a module without parameters, which goes to every layer, and a mask made where the values are."""

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rates", torch.rand(WIDTH))

        def forward(self, h: Tensor, places: Tensor) -> Tensor:
            return torch.cos(places[:, None] * self.get_buffer("rates")).to(h.dtype)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, h: Tensor, angles: Tensor, mask: Tensor | None = None) -> Tensor:
            assert mask is not None
            return h + mask @ (self.linear(h) * angles)  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.words, self.angles = nn.Embedding(12, WIDTH), self.Angles()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        places = torch.arange(h.shape[1], device=h.device)
        angles, mask = self.angles(h, places), torch.ones(h.shape[1], h.shape[1], device=h.device).tril()
        for layer in self.layers:
            h = layer(h, angles, mask=mask)
        return h  # type: ignore[no-any-return]


@pytest.mark.parametrize("cut", range(1, 4))
def test_what_is_made_from_shapes_alone_is_made_by_every_stage(cut: int) -> None:
    model, (x, _) = Turning(), words(4, 1)
    expected = model(x)
    gates, chain = traced(model, x)
    assert [unit.name for unit in chain.units] == ["words", "layers.0", "layers.1", "layers.2"] and not chain.blocked
    out, passed = in_stages(model, chain, gates, [cut], x)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert [one.shape for one in passed[1]] == [(4, 6, WIDTH)]


def test_a_tied_weight_blocks_every_cut_between_its_two_ends() -> None:
    _, chain = traced(Encoder(tied=True), words(2, 1)[0])
    assert set(chain.blocked) == {1, 2, 3}
    assert "the weight 'words.weight' is tied, 'words' and 'lm_head' share it" in chain.blocked[2]


class Skip(nn.Module):
    """The output of the first layer comes again after the second, and one parameter is used in two places."""

    def __init__(self, again: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.by = nn.Parameter(torch.ones(4))
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        first = self.layers[0](x * self.by)
        h = self.layers[1](first)
        h = self.layers[2](h + first)
        return self.layers[3](h) * (self.by if self.again else 1.0)  # type: ignore[no-any-return]


def test_a_value_that_goes_around_a_layer_and_a_parameter_used_twice_block_cuts() -> None:
    _, chain = traced(Skip(again=False), torch.zeros(2, 4))
    assert chain.blocked == {1: "what 'layers.0' makes is used again at 'layers.2'"}
    _, chain = traced(Skip(again=True), torch.zeros(2, 4))
    assert chain.blocked[3] == "'by' is used beside 'layers.0' and 'layers.3'"


def test_a_layer_called_twice_stays_whole() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](self.layers[1](self.layers[0](x)))  # type: ignore[no-any-return]

    _, chain = traced(Twice(), torch.zeros(2, 4))
    assert set(chain.blocked) == {1, 2} and chain.blocked[1] == "'layers.0' is called twice"


def test_marks_are_units_wherever_they_are() -> None:
    model = Gpt()
    setattr(model.blocks[1].feed, MARK, True)
    gates = Gates(model, marks=True)
    assert "blocks.1.feed" in gates.units and "blocks.1.attention" in gates.units and "blocks.0" in gates.units
    model = Gpt()
    setattr(model.blocks[1], MARK, True)
    _, chain = traced(model, words(2, 1)[0], marks=True)
    assert split.marked(chain.units, 2, chain.blocked) == [2]


def test_a_forward_that_decides_by_what_layers_compute_is_refused() -> None:
    class Deciding(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            h = self[0](x)
            return self[1](h) if h.sum() > 0 else h  # type: ignore[no-any-return]

    with pytest.raises(BadModel, match="cannot follow the model's forward without numbers"):
        traced(Deciding(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2))


def test_a_forward_that_changes_its_way_is_refused() -> None:
    class Changing(nn.Sequential):
        way = (0, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self[self.way[1]](self[self.way[0]](x))  # type: ignore[no-any-return]

    model = Changing(nn.Linear(2, 2), nn.Linear(2, 2))
    gates, chain = traced(model, torch.ones(1, 2))
    model.way = (1, 0)
    with pytest.raises(BadModel, match="the forward calls '1' where it called '0' before"):
        Stage(model.forward, gates, chain, 0, 2).run((torch.ones(1, 2),), lambda like: like)


def test_tracing_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    before, dice = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    traced(model, torch.ones(3, 2))
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert torch.equal(dice, torch.get_rng_state())
