"""Frameworks by name: the roles each has under which strategy, whose end is the job's end, and what is refused and why.

Standard library only. A strategy name means the same idea everywhere; who carries it out is the framework's own code,
and under `pytorch` Shoal's training library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from shoal.catalogue import nearest
from shoal.errors import BadSpec, UnknownName
from shoal.strategy import STRATEGIES
from shoal.strategy import Kind as StrategyKind

OnLost = Literal["fail", "restart", "continue"]
Leads = Literal["none", "first", "all"]  # who of a role decides: nobody, the first, everyone

NATIVE = "native"
WORKER, SERVER, CHIEF, EVALUATOR, SCHEDULER = "worker", "server", "chief", "evaluator", "scheduler"
TRACKER = "tracker"
ANY = 1_000_000  # more than any job has
LIBRARY_PYTHON = "3.10"  # the first that `shoal.train` and the like run in


@dataclass(frozen=True, slots=True)
class Part:
    """A role of a framework under a strategy: how many, who runs there, and what its end means."""

    role: str
    says: str
    count: int = 1  # when the job does not say
    least: int = 0
    most: int = ANY
    leads: Leads = "none"  # the job has ended well when all that lead have
    on_lost: OnLost = "fail"  # unless the job says otherwise
    spare: bool = False  # `continue` holds even when none is left
    ours: bool = False  # a process of Shoal's own, never the user's script
    light: bool = False  # asks for nothing unless the job says so: it only tells others of each other
    stays_lost: str = ""  # why `restart` is refused; empty where it is not


@dataclass(frozen=True, slots=True)
class Pair:
    """A framework under a strategy."""

    framework: str
    strategy: str
    says: str
    parts: tuple[Part, ...]

    def part(self, role: str) -> Part | None:
        return next((part for part in self.parts if part.role == role), None)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(part.role for part in self.parts)


@dataclass(frozen=True)
class Framework:
    """One framework: its strategies with their roles, and why it has no others."""

    name: str
    says: str
    pairs: Mapping[str, Pair]
    usual: str = NATIVE  # the strategy of a job that names none
    why_not: str = ""  # why the other strategies are refused
    any_role: bool = False  # roles of the user's own run the script too
    trains_data: bool = False  # trains from `data` without a script
    python: str = (
        LIBRARY_PYTHON  # the first version that what Shoal brings along runs in; empty where it brings nothing
    )

    def pair(self, strategy: str | None) -> Pair:
        """Under that strategy, or the usual one; BadSpec says why there is none."""
        name = (strategy or self.usual).partition(":")[0]
        if name in self.pairs:
            return self.pairs[name]
        known = [one for one in self.pairs if one != NATIVE] or [NATIVE]
        raise BadSpec(
            f"framework {self.name} has no strategy {name!r}: {self.why_not}; take {' or '.join(known)}, "
            "or leave the key out"
        )


def describe(names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of these frameworks as every door shows them."""
    wanted = set(names)
    return [
        {
            "name": row.name,
            "says": row.says,
            "usual": row.usual,
            "refused": {strategy: row.why_not for strategy in STRATEGIES if strategy not in row.pairs},
            "strategies": [
                {"name": pair.strategy, "says": pair.says, "roles": [asdict(part) for part in pair.parts]}
                for pair in row.pairs.values()
            ],
        }
        for row in (FRAMEWORKS[name] for name in FRAMEWORKS if name in wanted)
    ]


def framework(name: str) -> Framework:
    """The row of a framework; UnknownName with the nearest one otherwise."""
    if name not in FRAMEWORKS:
        raise UnknownName("framework", name, list(FRAMEWORKS), nearest(name, FRAMEWORKS))
    return FRAMEWORKS[name]


# -- the table ---------------------------------------------------------------------------------------------------------

_WORKER = Part(WORKER, "trains", least=1, leads="all")
_CHIEF = Part(CHIEF, "trains, and writes what all share", count=0, most=1, leads="all")
_EVALUATOR = Part(EVALUATOR, "evaluates checkpoints beside the training", count=0, on_lost="continue", spare=True)


def _torch_parts(kind: StrategyKind) -> tuple[Part, ...]:
    worker = replace(_WORKER, on_lost="continue" if kind.spares_workers else "fail")
    server = Part(SERVER, "holds parameters", least=1, on_lost="restart", ours=True)
    return (worker, server) if kind.servers else (worker,)


def _row(
    name: str,
    says: str,
    pairs: Iterable[tuple[str, str, tuple[Part, ...]]],
    *,
    usual: str = NATIVE,
    why_not: str = "",
    any_role: bool = False,
    trains_data: bool = False,
    python: str = LIBRARY_PYTHON,
) -> Framework:
    table = {strategy: Pair(name, strategy, words, parts) for strategy, words, parts in pairs}
    if NATIVE not in table:
        table[NATIVE] = replace(table[usual], strategy=NATIVE, says="the same: the script does its own exchange")
    return Framework(name, says, MappingProxyType(table), usual, why_not, any_role, trains_data, python)


_TRACKER = Part(TRACKER, "tells the workers of each other", least=1, most=1, ours=True, light=True)
_TF_SERVER = Part(SERVER, "its parameter server (ps)", least=1, ours=True)
_MXNET = (
    _WORKER,
    Part(SERVER, "holds keys of the key-value store", least=1, ours=True),
    Part(SCHEDULER, "tells the others of each other", least=1, most=1, ours=True, light=True),
)
_PADDLE_PS = (_WORKER, Part(SERVER, "holds tables; runs the script, which calls fleet.run_server()", least=1))

FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        row.name: row
        for row in (
            _row(
                "pytorch",
                "everything torchrun sets is set; strategies by Shoal's training library",
                [(kind.name, kind.meaning, _torch_parts(kind)) for kind in STRATEGIES.values()],
                any_role=True,
            ),
            _row(
                "tensorflow",
                "TF_CONFIG names the peers",
                [
                    (
                        NATIVE,
                        "every process runs the script, with its place in TF_CONFIG",
                        (
                            replace(_WORKER, least=0),
                            _CHIEF,
                            Part(SERVER, "its parameter server (ps)", count=0),
                            _EVALUATOR,
                        ),
                    ),
                    ("allreduce", "MultiWorkerMirroredStrategy", (_WORKER, _CHIEF, _EVALUATOR)),
                    (
                        "ps-async",
                        "ParameterServerStrategy: the script is the chief's, workers and servers are Shoal's",
                        (
                            replace(_CHIEF, count=1, least=1, says="runs the script, which hands out the steps"),
                            Part(WORKER, "computes what it is handed", least=1, on_lost="restart", ours=True),
                            _TF_SERVER,
                            _EVALUATOR,
                        ),
                    ),
                    (
                        "ps-sync",
                        "old scripts with SyncReplicasOptimizer: workers run the script, servers are Shoal's",
                        (replace(_WORKER, leads="first", says="trains; the first is chief"), _TF_SERVER, _EVALUATOR),
                    ),
                ],
                why_not="it has its own strategies, MultiWorkerMirrored and ParameterServer",
            ),
            _row(
                "xgboost",
                "a tracker of Shoal's; xgboost.collective finds the others",
                [
                    (
                        "allreduce",
                        "workers add up the histograms of their rows",
                        (_WORKER, _TRACKER),
                    )
                ],
                usual="allreduce",
                why_not="its workers add up histograms in every round",
                trains_data=True,
            ),
            _row(
                "lightgbm",
                "a list of machines with fresh ports",
                [("allreduce", "workers add up the histograms of their rows (tree_learner=data)", (_WORKER,))],
                usual="allreduce",
                why_not="its workers add up histograms in every round",
                trains_data=True,
            ),
            _row(
                "mxnet",
                "DMLC_* name the peers of the key-value store",
                [
                    ("ps-sync", "the script's kvstore is dist_sync (or dist_device_sync)", _MXNET),
                    ("ps-async", "the script's kvstore is dist_async", _MXNET),
                ],
                usual="ps-sync",
                why_not="its key-value store lives on servers",
                python="3.9",  # its wheels end where those of others begin
            ),
            _row(
                "paddle",
                "PADDLE_* name the peers",
                [
                    ("allreduce", "DataParallel and Fleet collective", (_WORKER,)),
                    ("ps-sync", "Fleet's parameter servers, where the installed build has them", _PADDLE_PS),
                    ("ps-async", "the same with a_sync=True in the script's DistributedStrategy", _PADDLE_PS),
                ],
                usual="allreduce",
                why_not="Fleet has collective training and parameter servers",
            ),
            _row(
                "jax",
                "jax.distributed finds its peers by variables",
                [("allreduce", "one program over the devices of all processes", (_WORKER,))],
                usual="allreduce",
                why_not="its processes run one program over all devices",
            ),
            _row(
                "horovod",
                "the script's hvd: the installed Horovod, else Shoal's own",
                [
                    (
                        "allreduce",
                        "its DistributedOptimizer averages gradients",
                        (
                            replace(
                                _WORKER, stays_lost="its ranks begin together, and one that comes later finds nobody"
                            ),
                        ),
                    )
                ],
                usual="allreduce",
                why_not="its ranks are equal and reduce together",
            ),
            _row(
                "sklearn",
                "joblib's tasks (n_jobs=-1) go to the workers",
                [
                    (
                        NATIVE,
                        "the script is the chief's; GridSearchCV and friends spread over the workers",
                        (
                            Part(CHIEF, "runs the script", least=1, most=1, leads="all"),
                            Part(WORKER, "takes tasks of joblib", least=1, on_lost="restart", ours=True),
                        ),
                    )
                ],
                why_not="its tasks are independent of each other and exchange nothing",
            ),
            _row(
                "mpi",
                "mpirun makes the ranks one world; each is a worker with its own log and limits",
                [(NATIVE, "the program does its own exchange, by MPI", (_WORKER,))],
                why_not="Shoal cannot reach into a program it does not know",
            ),
            _row(
                "command",
                "any program; the roster, a port and the addresses of all roles are given to it",
                [(NATIVE, "the program does its own exchange", (_WORKER,))],
                why_not="Shoal cannot reach into a program it does not know",
                any_role=True,
                python="",
            ),
        )
    }
)


def leads_by_name(role: str) -> Leads:
    """Who decides the job's end in a role that the framework does not know."""
    return "all" if role in (WORKER, CHIEF) else "none"


__all__ = [
    "ANY",
    "FRAMEWORKS",
    "NATIVE",
    "TRACKER",
    "Framework",
    "Leads",
    "OnLost",
    "Pair",
    "Part",
    "describe",
    "framework",
    "leads_by_name",
]
