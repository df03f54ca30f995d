"""Which matrix is cut which way, for the common shapes; what is kept, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from shoal.train.errors import BadModel
from shoal.train.partition import plans
from tests.train.partition.models import Encoder, Gpt, Mixed, Mlp


def test_linear_pairs_of_a_sequence_pass_plain_parts_to_each_other() -> None:
    plan = plans.automatic(Mlp(), 2)
    assert plan.cuts == {"0": "columns", "2": "rows", "4": "columns", "6": "rows"}
    assert plan.local == set(plan.cuts)


def test_a_norm_between_two_matrices_parts_them() -> None:
    plan = plans.automatic(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)), 2)
    assert plan.cuts == {"0": "gathered", "2": "gathered"} and not plan.local


def test_matrices_that_do_not_follow_each_other_are_no_pair() -> None:
    plan = plans.automatic(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.Linear(4, 6)), 2)
    assert plan.cuts == {"0": "gathered", "3": "gathered"}


def test_a_decoder_is_cut_by_its_names() -> None:
    plan = plans.automatic(Gpt(), 2)
    attention = {"blocks.0.attention." + name: "columns" for name in ("q_proj", "k_proj", "v_proj")}
    feed = {"blocks.0.feed." + name: "columns" for name in ("gate_proj", "up_proj")}
    expected = {
        **attention,
        "blocks.0.attention.o_proj": "rows",
        **feed,
        "blocks.0.feed.down_proj": "rows",
        "blocks.1.attention.c_attn": "gathered",
        "blocks.1.attention.c_proj": "rows",
        "words": "vocabulary",
        "lm_head": "gathered",
    }
    assert expected.items() <= plan.cuts.items() and not plan.kept and not plan.local
    assert plans.share(Gpt(), plan) > 0.8


def test_torchs_own_layer_is_cut_between_its_attention_which_is_kept() -> None:
    plan = plans.automatic(Encoder(), 2)
    assert plan.cuts["encoder.layers.0.linear1"] == "columns" and plan.cuts["encoder.layers.0.linear2"] == "rows"
    assert "without calling them" in plan.kept["encoder.layers.0.self_attn"]
    assert plan.told_kept()[0].startswith("encoder.layers.0.self_attn, encoder.layers.1.self_attn (nn.Multi")
    assert plan.told_cuts() == "2 columns, 1 gathered, 2 rows, 1 vocabulary"
    assert not any("self_attn" in name for name in plan.cuts)


def test_heads_that_cannot_be_shared_out_keep_their_attention() -> None:
    model = Gpt()
    plan = plans.automatic(model, 8)
    assert plan.kept["blocks.0.attention.q_proj"] == "n_heads=4 is not divisible by size=8"
    assert plan.cuts["blocks.0.feed.up_proj"] == "columns"


def test_what_does_not_divide_is_kept_and_says_why() -> None:
    plan = plans.automatic(Mixed(), 3)
    assert plan.kept["fc1"] == "16 features are not divisible by size=3"
    assert plan.cuts == {"words": "vocabulary"}


def test_a_tied_weight_is_cut_alike_in_both_or_in_neither() -> None:
    model = nn.Sequential(
        nn.Embedding(7, 4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 7)
    )
    model[5].weight = model[0].weight
    plan = plans.automatic(model, 2)
    assert plan.cuts == {"1": "columns", "3": "rows"}
    assert all("is tied (0.weight, 5.weight)" in plan.kept[name] for name in ("0", "5"))


class Conv1D(nn.Module):
    """As transformers writes it: the weight is transposed."""

    def __init__(self, out: int, into: int) -> None:
        super().__init__()
        self.nf = out
        self.weight, self.bias = nn.Parameter(torch.zeros(into, out)), nn.Parameter(torch.zeros(out))


def test_a_transposed_matrix_is_known() -> None:
    model = nn.Module()
    model.c_fc, model.c_proj = Conv1D(8, 4), Conv1D(4, 8)
    plan = plans.automatic(model, 2)
    assert plan.cuts == {"c_fc": "columns", "c_proj": "rows"} and plans.features(model.c_fc) == (4, 8)


def test_a_bert_layer_keeps_its_sense() -> None:
    layer = nn.Module()
    layer.intermediate, layer.output = nn.Module(), nn.Module()
    layer.intermediate.dense, layer.output.dense = nn.Linear(4, 8), nn.Linear(8, 4)
    assert plans.automatic(layer, 2).cuts == {"intermediate.dense": "columns", "output.dense": "rows"}


def test_a_model_it_does_not_know_is_named_with_the_way_out() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(
        BadModel, match=r"cut none of 0 \(Conv2d\), 3 \(Linear: 3 output features.*tensor:plan=NAME; or use"
    ):
        plans.automatic(model, 2)


def test_a_given_plan_names_modules_by_pattern() -> None:
    style = ColwiseParallel()
    plan = plans.given({"blocks.*.feed.up_proj": "columns", "lm_head": style, "norm": "keep"}, Gpt(), "plan=mine")
    assert [name for name in plan.cuts if "up_proj" in name] == [f"blocks.{number}.feed.up_proj" for number in range(2)]
    assert plan.cuts["lm_head"] is style and plan.kept == {"norm": "plan=mine says so"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "plan=mine returned NoneType: return a dict"),
        ({}, "returned dict"),
        ({"lm_hed": "columns"}, "no module matches 'lm_hed'; did you mean 'lm_head'"),
        ({"lm_head": "colums"}, "style 'colums'.*did you mean 'columns'"),
        ({"norm": "rows"}, "'norm' is a LayerNorm, which has no style 'rows'"),
        ({"lm_head": "vocabulary"}, "'lm_head' is a Linear, which has no style 'vocabulary'"),
    ],
)
def test_a_given_plan_that_cannot_be_is_refused(answer: object, says: str) -> None:
    with pytest.raises(BadModel, match=says):
        plans.given(answer, Gpt(), "plan=mine")
