"""Which figures were asked for, and how they are shown: one line each, as soon as it is known."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterable, Sequence

from shoal.bench.catalogue import BENCHES, GROUPS, ON_REQUEST
from shoal.bench.figure import Bench, Figure
from shoal.catalogue import Catalogue, nearest
from shoal.errors import ShoalError, UnknownName

log = logging.getLogger("shoal.bench")


def main(names: Sequence[str] = (), as_json: bool = False, benches: Catalogue = BENCHES) -> int:
    """Measures what was named and prints it. 0 also when a target is missed; 1 when something could not be measured."""
    plan = group(choose(names, benches), benches)
    if not as_json:
        print(_row("figure", "value", "target", "", "peer"), flush=True)
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        measured = [_measure(measure, wanted, as_json) for measure, wanted in plan.items()]
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0 if all(measured) else 1


def _measure(measure: Bench, wanted: list[str], as_json: bool) -> bool:
    """Prints the wanted figures of one function; False, and why, when it could not measure them."""
    try:
        for figure in measure():
            if figure.bench in wanted:
                print(_json(figure) if as_json else _line(figure), flush=True)
        return True
    except ShoalError as wrong:
        print(f"{', '.join(wanted)}: {wrong}", file=sys.stderr)
    except Exception:
        log.exception("%s could not be measured", ", ".join(wanted))
    return False


def _leave(*_: object) -> None:
    """Asked to end: as by Ctrl-C, so that the server being measured ends as well."""
    raise KeyboardInterrupt


def choose(names: Sequence[str], benches: Catalogue = BENCHES) -> list[str]:
    """The figures whose names begin so, or that belong to a group of that name, in the catalogue's order; without a
    name all but those on request. UnknownName with the nearest."""
    known = benches.names()
    chosen: set[str] = set() if names else {name for name in known if not name.startswith(ON_REQUEST)}
    for name in names:
        fitting = [one for one in known if one.startswith(GROUPS.get(name, name))]
        if not fitting:
            raise UnknownName(benches.family, name, known, nearest(name, _beginnings(known)))
        chosen.update(fitting)
    return [name for name in known if name in chosen]


def group(names: Iterable[str], benches: Catalogue = BENCHES) -> dict[Bench, list[str]]:
    """What to run for these figures: each function once, whatever number of them it gives."""
    plan: dict[Bench, list[str]] = {}
    for name in names:
        plan.setdefault(benches.load(name), []).append(name)
    return plan


def _beginnings(known: Iterable[str]) -> list[str]:
    """What may be written: `launch.command`, and `launch` for all that begin so."""
    return sorted({*GROUPS, *(part for name in known for part in (name, name.partition(".")[0]))})


def _json(figure: Figure) -> str:
    return json.dumps(figure.to_dict(), ensure_ascii=False)


def _line(figure: Figure) -> str:
    value = f"{_digits(figure.value)} {figure.target.unit}"
    said = "; ".join(text for text in (figure.peer, figure.note) if text)
    return _row(figure.bench, value, str(figure.target), "ok" if figure.ok else "miss", said)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _row(name: str, value: str, target: str, verdict: str, rest: str) -> str:
    return f"{name:<18} {value:>14}  {target:<14} {verdict:<5} {rest}".rstrip()
