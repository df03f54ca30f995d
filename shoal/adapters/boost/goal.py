"""What is to be predicted: a number, or one of several classes; by the objective, or else by the label itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.adapters.boost.errors import BadData

Kind = Literal["number", "yes or no", "class"]
MOST_SEEN = 20  # different whole numbers in a label that still look like classes
MOST_CLASSES = 1_000
_CLASSES = ("multi", "softmax", "binary", "cross_entropy")  # how objectives for classes begin


@dataclass(frozen=True)
class Seen:
    """The label as all workers see it together: its different values (no more than a few over MOST_CLASSES)."""

    values: tuple[str, ...] | tuple[float, ...]
    text: bool

    @property
    def whole(self) -> bool:
        return not self.text and all(float(value).is_integer() for value in self.values)


@dataclass(frozen=True)
class Goal:
    """`classes` are the label's values in the order of the numbers they are trained as; None for plain numbers."""

    kind: Kind
    classes: tuple[str, ...] | tuple[float, ...] | None = None

    def words(self, label: str) -> str:
        if self.classes is None:
            return f"{label} is a number"
        shown = ", ".join(f"{value:g}" if isinstance(value, float) else value for value in self.classes[:10])
        return f"{label} is one of {len(self.classes)} classes ({shown}{' …' if len(self.classes) > 10 else ''})"


def decide(label: str, seen: Seen, objective: str | None, num_class: int | None) -> Goal:
    """BadData when the objective and the label contradict each other."""
    many = len(seen.values)
    looks_so = seen.text or (seen.whole and many <= MOST_SEEN)
    classes = looks_so if objective is None else objective.startswith(_CLASSES)
    if not classes and seen.text:
        raise BadData(
            f"label: {label!r} holds texts such as {seen.values[0]!r}, and objective {objective!r} predicts a number; "
            "name another column, or an objective for classes"
        )
    if not classes:
        return Goal("number")
    if many > MOST_CLASSES:
        raise BadData(f"label: {label!r} has more than {MOST_CLASSES} different values; is it a class at all?")
    if many < 2:
        raise BadData(f"label: {label!r} is {seen.values[0]!r} in every row; there is nothing to tell apart")
    return _classes(label, seen, objective, num_class)


def _classes(label: str, seen: Seen, objective: str | None, num_class: int | None) -> Goal:
    many = len(seen.values)
    if num_class and not seen.text:
        numbers = tuple(float(number) for number in range(num_class))
        if not set(seen.values) <= set(numbers):
            raise BadData(f"label: {label!r} must hold 0 to {num_class - 1} with num_class {num_class}; leave that out")
        return Goal("class", numbers)
    binary = objective.startswith(("binary", "cross_entropy")) if objective else many == 2
    if binary and many > 2:
        raise BadData(f"label: {label!r} has {many} different values, and objective {objective!r} knows two")
    return Goal("yes or no" if binary else "class", seen.values)


def values_of(told: Sequence[Sequence[str] | Sequence[float]], text: bool) -> Seen:
    """What all workers saw, from what each of them did."""
    if text:
        return Seen(tuple(sorted({str(value) for one in told for value in one})), True)
    return Seen(tuple(sorted({float(value) for one in told for value in one})), False)
