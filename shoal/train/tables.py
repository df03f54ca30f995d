"""Sparse tables in a run: the embeddings of a wrapped model are connected, saved with its checkpoints, and closed.

`shoal.train.embedding` is loaded only where the script uses it: who has not imported it has no such embedding.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from shoal.train.api import Setting
from shoal.train.checkpoint import Keeper, beside
from shoal.train.checkpoint.disk import facts
from shoal.train.errors import BadModel
from shoal.train.unit import Unit

if TYPE_CHECKING:
    from shoal.train.embedding import Tables

MODULE = "shoal.train.embedding"


def connect(unit: Unit, setting: Setting, keeper: Keeper) -> Tables | None:
    """The tables of the unit's model; None when it has none. Called after the unit's hooks are set: gradients of a
    closure must be there when rows are sent."""
    module = sys.modules.get(MODULE)
    if module is None or not any(isinstance(one, module.Embedding) for one in unit.given.modules()):
        return None
    unit.optimizers[0].register_step_pre_hook(_refuse_scaled)
    tables: Tables = module.Tables(unit.given, unit.optimizers, setting)
    keeper.add(f"tables.{unit.number}", lambda: _save(tables), lambda state: tables.load(beside.folder()))
    return tables


def _save(tables: Tables) -> dict[str, Any]:
    folder: Path = beside.folder()
    files = tables.save(folder)
    for file in files:
        found = facts(folder / file)
        beside.wrote(file, found.bytes, found.sha256)
    return {"files": files}


def _refuse_scaled(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """The gradients of rows are not the optimizer's, so a GradScaler would leave its scale in them."""
    if hasattr(optimizer, "found_inf"):
        raise BadModel(
            "a GradScaler cannot scale the rows of train.Embedding: train in bfloat16, which needs no scaler"
        )
