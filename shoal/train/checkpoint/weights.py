"""The weights out of a checkpoint, for evaluation or for another script."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from shoal.train.checkpoint import chain, parts, tensors
from shoal.train.checkpoint.chain import Chain, Manifest
from shoal.train.errors import BadCheckpoint


def weights(folder: str | Path, which: str = "last", *, averaged: bool = False, unit: int = 0) -> dict[str, Tensor]:
    """A state dict. `folder` holds checkpoints (`outputs/checkpoints`); `which` is `last`, `best` or a checkpoint's
    name; `unit` tells the models of a script apart that calls `wrap` more than once."""
    every = Chain(Path(folder))
    known = every.whole()
    manifest = _choose(every.folder, known, which)
    at = every.folder / manifest.name
    wanted = f"{'averaged' if averaged else 'model'}-{unit}{tensors.SUFFIX}"
    for name in (wanted, f"rank-0-{wanted}"):
        if name in manifest.files:
            chain.check(at, manifest, lambda file, name=name: file == name)  # type: ignore[misc]
            return tensors.read(at / name)
    kept = ", ".join(name for name in manifest.files if not name.startswith(parts.listing(0)))
    raise BadCheckpoint(f"{at} holds no {wanted}, only {kept}; was the run started with average=ema or swa?")


def _choose(folder: Path, known: list[Manifest], which: str) -> Manifest:
    if not known:
        raise BadCheckpoint(f"there is no whole checkpoint in {folder}: give the folder that run.save wrote to")
    if which == "last":
        return known[0]
    if which == "best":
        rated = [one for one in known if one.best is not None]
        if not rated:
            raise BadCheckpoint(f"no checkpoint in {folder} has a metric: save with run.save(epoch, best=accuracy)")
        return max(rated, key=lambda one: (one.best, one.serial))
    named = {one.name: one for one in known}
    if which not in named:
        raise BadCheckpoint(f"there is no checkpoint {which!r} in {folder}, only {', '.join(sorted(named))}")
    return named[which]
