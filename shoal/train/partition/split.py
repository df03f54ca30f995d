"""Where a chain of units is cut into stages: by cost, or where the user marked it. Pure.

A unit is one call of a module in the model's forward. A cut before unit k puts the units below k on earlier stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shoal.errors import BadSpec
from shoal.train.errors import BadModel

FORWARD_AND_BACKWARD = 3  # backward costs about twice what forward does
UPDATE = 20  # operations per parameter and step: gradient, optimizer, its memory
TOUCH = 10  # operations per number of an output: activations, norms, memory

MARK = "_shoal_mark"  # what `run.mark` leaves on a module


@dataclass(frozen=True)
class Unit:
    """One call of a module: its name, and what it costs for one micro-batch."""

    name: str
    flops: float = 0.0
    parameters: int = 0
    outputs: int = 0
    marked: bool = False

    def cost(self, microbatches: int = 1) -> float:
        """Operations of one step."""
        each = FORWARD_AND_BACKWARD * self.flops + TOUCH * self.outputs
        return each * microbatches + UPDATE * self.parameters


def balanced(costs: Sequence[float], stages: int, blocked: Mapping[int, str], widths: Sequence[int] = ()) -> list[int]:
    """The cuts for which the dearest stage is cheapest, each stage's cost divided by its width (workers that share it).
    BadModel when there are fewer places to cut than stages, with what stands in the way."""
    wide = list(widths) or [1] * stages
    places = [0, *(place for place in range(1, len(costs)) if place not in blocked), len(costs)]
    if len(places) - 1 < stages:
        raise _too_few(len(costs), stages, len(places) - 1, blocked)
    upto = np.concatenate([[0.0], np.cumsum(costs)])[places]
    size, origin = len(places), []
    best = upto / wide[0]  # the dearest stage, when all below places[i] are on the stages so far
    best[0] = np.inf  # a stage is not empty
    rest = upto[None, :] - upto[:, None]  # [at, end]: what lies between the two
    rest[np.tril_indices(size)] = np.inf
    for width in wide[1:]:
        dearest = np.maximum(best[:, None], rest / width)
        origin.append(dearest.argmin(axis=0))
        best = dearest.min(axis=0)
    cuts, at = [], size - 1
    for came in reversed(origin):
        at = int(came[at])
        cuts.append(places[at])
    return cuts[::-1]


def enough(names: Sequence[str], stages: int) -> None:
    """BadModel, before anything has run, when there are fewer modules than stages."""
    if len(names) < stages:
        raise BadModel(
            f"the model has {len(names)} layers to cut between ({', '.join(names) or 'none'}) and {stages} stages are "
            "asked for: lower stages=, or use fsdp"
        )


def marked(units: Sequence[Unit], stages: int, blocked: Mapping[int, str]) -> list[int]:
    """The cuts at the user's marks; BadModel when one cannot be, BadSpec when they make another number of stages."""
    cuts = [place for place, unit in enumerate(units) if unit.marked and place]
    for place in cuts:
        if place in blocked:
            raise BadModel(
                f"the pipeline cannot be cut at the mark on {units[place].name!r}: {blocked[place]}; move the mark"
            )
    if len(cuts) + 1 != stages:
        named = ", ".join(units[place].name for place in cuts) or "none"
        raise BadSpec(
            f"{len(cuts)} marks ({named}) make {len(cuts) + 1} stages and the pipeline has {stages}: "
            "call run.mark on the first module of every stage but the first, or set stages="
        )
    return cuts


def spans(cuts: Sequence[int], units: int) -> list[tuple[int, int]]:
    """First unit and the one after the last, of every stage."""
    edges = [0, *cuts, units]
    return list(pairwise(edges))


def per_stage(text: str, stages: int, what: str) -> list[str]:
    """`2x1` as one word per stage; BadSpec when there is another number of them."""
    words = [word.strip() for word in text.split("x")]
    if len(words) != stages or not all(words):
        raise BadSpec(
            f"pipeline:{what}={text} names {len(words)} stages and there are {stages}: write one for each, joined by x"
        )
    return words


def replicas_of(text: str, stages: int, workers: int) -> list[int]:
    """How many workers each stage has, from `2x1`, or from nothing."""
    if not text:
        if stages > workers or workers % stages:
            raise BadSpec(
                f"{workers} workers cannot make pipelines of {stages} stages: choose stages that divide {workers}, "
                "or say how many work at each, such as replicas=2x1"
            )
        return [workers // stages] * stages
    counts = per_stage(text, stages, "replicas")
    if not all(word.isdigit() and int(word) for word in counts):
        raise BadSpec(f"pipeline:replicas={text} must be whole numbers from 1 on, such as 2x1")
    numbers = [int(word) for word in counts]
    if sum(numbers) != workers:
        raise BadSpec(f"pipeline:replicas={text} needs {sum(numbers)} workers and there are {workers}: start as many")
    return numbers


def microbatches(batch: int, wanted: int) -> int:
    """The largest number of equal parts of a batch, up to the wanted one."""
    return next(count for count in range(min(wanted, batch), 0, -1) if batch % count == 0)


def _too_few(units: int, stages: int, possible: int, blocked: Mapping[int, str]) -> BadModel:
    why = "; ".join(dict.fromkeys(blocked.values())) if blocked else f"its forward calls {units} modules in a row"
    more = "give each stage weights of its own, lower stages=, or use fsdp" if blocked else "lower stages=, or use fsdp"
    return BadModel(f"the model can be cut into {possible} stages and {stages} are asked for: {why}; {more}")
