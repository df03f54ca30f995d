"""Which matrix of a model is cut which way: plans for tensor parallelism, automatic for the common shapes, else given.

A plan names modules and styles; nothing here exchanges anything. Two matrices in a row are cut by columns and then by
rows, so that only one sum crosses workers (Shoeybi et al., *Megatron-LM*, 1909.08053).
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from shoal.catalogue import nearest
from shoal.train.errors import BadModel

COLUMNS = "columns"  # by output features; the output stays cut for the partner that is cut by rows
ROWS = "rows"  # by input features; the outputs are summed over workers
GATHERED = "gathered"  # by output features; the output is put together
VOCABULARY = "vocabulary"  # the rows of an embedding; what is not here counts as zero and is summed
KEEP = "keep"  # every worker has all of it
STYLES = (COLUMNS, ROWS, GATHERED, VOCABULARY, KEEP)

MOST_NAMED = 5
HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "num_key_value_heads", "n_kv_heads", "num_kv_heads")

# Names of children that belong together: first those cut by columns, then the one cut by rows. The first row of which
# all are there is taken. Sources: the attention and feed-forward modules of transformers, torchvision, nanoGPT, Llama.
ATTENTION: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj", "dense", "c_proj")),
    (("query", "key", "value"), ("dense", "out", "out_proj", "proj")),
    (("wq", "wk", "wv"), ("wo",)),
    (("to_q", "to_k", "to_v"), ("to_out",)),
    (("q_lin", "k_lin", "v_lin"), ("out_lin",)),
    (("q", "k", "v"), ("o", "out", "proj")),
)
FUSED = ("c_attn", "qkv", "qkv_proj", "query_key_value", "to_qkv", "Wqkv", "W_pack", "gate_up_proj")
AFTER_FUSED = ("c_proj", "o_proj", "out_proj", "dense", "proj", "to_out", "down_proj")
FEED_FORWARD: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("gate_proj", "up_proj"), ("down_proj",)),
    (("w1", "w3"), ("w2",)),
    (("wi_0", "wi_1"), ("wo",)),
    (("wi",), ("wo",)),
    (("c_fc",), ("c_proj",)),
    (("fc1",), ("fc2",)),
    (("fc_in",), ("fc_out",)),
    (("lin1",), ("lin2",)),
    (("linear1",), ("linear2",)),
    (("dense_h_to_4h",), ("dense_4h_to_h",)),
    (("intermediate.dense",), ("output.dense",)),
    (("up",), ("down",)),
)
ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Threshold,
    nn.Identity, nn.Dropout, nn.AlphaDropout,
)  # fmt: skip


@dataclass
class Plan:
    """Modules by name: how they are cut, which of them pass their part on as a plain tensor, which were kept whole
    though they could have been cut, and why."""

    cuts: dict[str, Any] = field(default_factory=dict)  # a style's name, or a ParallelStyle of torch
    local: set[str] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)

    def told_cuts(self) -> str:
        """How many modules are cut which way."""
        counts = Counter(one if isinstance(one, str) else type(one).__name__ for one in self.cuts.values())
        return ", ".join(f"{count} {style}" for style, count in sorted(counts.items()))

    def told_kept(self) -> list[str]:
        """What was kept, reason by reason."""
        by_reason: dict[str, list[str]] = {}
        for name, why in self.kept.items():
            by_reason.setdefault(why, []).append(name)
        return [f"{_some(names)} ({why})" for why, names in by_reason.items()]

    def settled(self, name: str) -> bool:
        """Whether something was decided for the module or for one around it."""
        return any(name == one or name.startswith(one + ".") for one in (*self.cuts, *self.kept))


def automatic(model: nn.Module, size: int) -> Plan:
    """The plan for `size` workers; BadModel that names what it does not know when nothing can be cut."""
    plan = Plan()
    for name, module in model.named_modules():
        if plan.settled(name):
            continue
        if isinstance(module, nn.MultiheadAttention):
            plan.kept[name] = "nn.MultiheadAttention uses its matrices without calling them"
        elif isinstance(module, nn.Sequential):
            _sequence(plan, name, module, size)
        else:
            _family(plan, name, module, size)
    for name, module in model.named_modules():
        if not plan.settled(name):
            _single(plan, name, module, size)
    _keep_ties(plan, model)
    if not plan.cuts:
        raise _unknown(model, plan)
    return plan


def given(answer: object, model: nn.Module, source: str) -> Plan:
    """The plan that a function of the script returned: {pattern of module names: style}."""
    if not isinstance(answer, Mapping) or not answer:
        raise BadModel(
            f"{source} returned {type(answer).__name__}: return a dict such as "
            "{'layers.*.fc1': 'columns', 'layers.*.fc2': 'rows'}"
        )
    plan, names = Plan(), [name for name, _ in model.named_modules() if name]
    for pattern, style in answer.items():
        found = fnmatch.filter(names, pattern)
        if not found:
            near = nearest(pattern, names)
            raise BadModel(f"{source}: no module matches {pattern!r}" + (f"; did you mean {near!r}?" if near else ""))
        if isinstance(style, str) and style not in STYLES:
            near = nearest(style, STYLES)
            raise BadModel(
                f"{source}: {pattern!r} has style {style!r}, which is none of {', '.join(STYLES)} "
                "and no ParallelStyle of torch" + (f"; did you mean {near!r}?" if near else "")
            )
        for name in found:
            _decide(plan, name, model.get_submodule(name), style, source)
    return plan


def share(model: nn.Module, plan: Plan) -> float:
    """The part of the parameters that is cut."""
    cut = {id(one) for name in plan.cuts for one in model.get_submodule(name).parameters()}
    every = {id(one): one.numel() for one in model.parameters()}
    return sum(count for number, count in every.items() if number in cut) / max(1, sum(every.values()))


def is_matrix(module: nn.Module | None) -> bool:
    """A linear map: torch's, or the transposed one that GPT-2 of transformers calls Conv1D."""
    bare = module is not None and not module._modules and module._parameters.get("weight") is not None
    return bare and (isinstance(module, nn.Linear) or is_transposed(module))


def is_transposed(module: nn.Module | None) -> bool:
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and getattr(weight, "ndim", 0) == 2


def features(module: nn.Module) -> tuple[int, int]:
    """Input and output features of a matrix."""
    rows, columns = module.weight.shape  # type: ignore[misc]
    return (int(rows), int(columns)) if is_transposed(module) else (int(columns), int(rows))


# -- the common shapes -------------------------------------------------------------------------------------------------


def _sequence(plan: Plan, name: str, module: nn.Sequential, size: int) -> None:
    """Linear, elementwise things, Linear: a pair. What lies between is elementwise, so plain parts pass through it."""
    first: tuple[str, nn.Linear] | None = None
    for child_name, child in module.named_children():
        path = _join(name, child_name)
        if isinstance(child, nn.Linear):
            if first and first[1].out_features == child.in_features and child.in_features % size == 0:
                plan.cuts[first[0]], plan.cuts[path] = COLUMNS, ROWS
                plan.local |= {first[0], path}
                first = None
            else:
                first = (path, child)
        elif not isinstance(child, ELEMENTWISE):
            first = None


def _family(plan: Plan, name: str, module: nn.Module, size: int) -> None:
    heads = {one: getattr(module, one) for one in HEADS if isinstance(getattr(module, one, None), int)}
    uneven = [f"{one}={count}" for one, count in heads.items() if count % size]
    for columns, row in (*_of(module, ATTENTION), *_of(module, FEED_FORWARD)):
        attention = any(set(columns) == set(names) for names, _ in ATTENTION)
        whole = f"{uneven[0]} is not divisible by size={size}" if attention and uneven else None
        _group(plan, name, module, columns, row, size, whole)
    for fused in FUSED:
        if is_matrix(_child(module, fused)):
            _single(plan, _join(name, fused), module.get_submodule(fused), size)
            after = next((one for one in AFTER_FUSED if is_matrix(_child(module, one))), None)
            if after and features(module.get_submodule(after))[0] % size == 0:
                plan.cuts.setdefault(_join(name, after), ROWS)


def _of(
    module: nn.Module, table: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """The first row of the table that the module's children match."""
    for columns, rows in table:
        if all(is_matrix(_child(module, one)) for one in columns):
            row = next((one for one in rows if is_matrix(_child(module, one))), None)
            if row is not None:
                yield columns, row
                return


def _group(
    plan: Plan, name: str, module: nn.Module, columns: tuple[str, ...], row: str, size: int, whole: str | None
) -> None:
    paths = [_join(name, one) for one in (*columns, row)]
    if any(plan.settled(path) for path in paths):
        return
    outs = [features(module.get_submodule(one))[1] for one in columns]
    odd = next((out for out in (*outs, features(module.get_submodule(row))[0]) if out % size), None)
    if whole is None and odd is not None:
        whole = f"{odd} features are not divisible by size={size}"
    if whole is not None:
        plan.kept.update(dict.fromkeys(paths, whole))
        return
    plan.cuts.update(dict.fromkeys(paths[:-1], COLUMNS))
    plan.cuts[paths[-1]] = ROWS


def _single(plan: Plan, name: str, module: nn.Module, size: int) -> None:
    if plan.settled(name):
        return
    if is_matrix(module):
        out = features(module)[1]
        if out % size:
            plan.kept[name] = f"{out} output features are not divisible by size={size}"
        else:
            plan.cuts[name] = GATHERED
    elif isinstance(module, nn.Embedding):
        if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
            plan.kept[name] = "max_norm, sparse and scale_grad_by_freq need the whole table"
        elif module.num_embeddings >= size:
            plan.cuts[name] = VOCABULARY


def _keep_ties(plan: Plan, model: nn.Module) -> None:
    """A weight that two modules share is cut alike in both, or in neither."""
    for names in ties(model):
        owners = [name.rpartition(".")[0] for name in names]
        ways = {_way(plan, one, model.get_submodule(one)) for one in owners}
        if len(ways) > 1:
            for owner in owners:
                partner = [one for one in plan.cuts if one.rpartition(".")[0] == owner.rpartition(".")[0]]
                for one in (owner, *(partner if owner in plan.local else ())):
                    plan.cuts.pop(one, None)
                    plan.kept[one] = f"its weight is tied ({', '.join(names)}) and cannot be cut alike everywhere"


def ties(model: nn.Module) -> list[list[str]]:
    """Names of parameters that are one and the same, where there is more than one."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [every for every in names.values() if len(every) > 1]


def _way(plan: Plan, name: str, module: nn.Module) -> int | None:
    """The dimension of the weight that a style cuts."""
    style = plan.cuts.get(name)
    if style is None:
        return None
    return int((style == ROWS) != is_transposed(module))


def _decide(plan: Plan, name: str, module: nn.Module, style: Any, source: str) -> None:
    if style == KEEP:
        plan.kept[name] = f"{source} says so"
        return
    fits = isinstance(module, nn.Embedding) if style == VOCABULARY else is_matrix(module) or not isinstance(style, str)
    if not fits:
        raise BadModel(
            f"{source}: {name!r} is a {type(module).__name__}, which has no style {style!r}; cut its matrices by name"
        )
    plan.cuts[name] = style


def _unknown(model: nn.Module, plan: Plan) -> BadModel:
    """Names the largest modules that hold parameters and were not cut."""
    held = {
        name: sum(one.numel() for one in module.parameters(recurse=False)) for name, module in model.named_modules()
    }
    largest = sorted((name for name in held if held[name]), key=lambda name: -held[name])[:MOST_NAMED]
    told = [f"{name or 'the model'} ({type(model.get_submodule(name)).__name__}{_why(plan, name)})" for name in largest]
    return BadModel(
        f"the automatic plan of tensor can cut none of {', '.join(told)}: write a function that returns "
        "{'layers.*.fc1': 'columns', 'layers.*.fc2': 'rows'} and name it, tensor:plan=NAME; or use fsdp"
    )


def _why(plan: Plan, name: str) -> str:
    reason = next((why for one, why in plan.kept.items() if name == one or name.startswith(one + ".")), None)
    return f": {reason}" if reason else ""


def _child(module: nn.Module, path: str) -> nn.Module | None:
    for part in path.split("."):
        found = module._modules.get(part)
        if found is None:
            return None
        module = found
    return module


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _join(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child
