"""XGBoost in a job: where its tracker is, and `xgboost.collective` taught to look there.

    with xgboost.collective.CommunicatorContext():      # in a job it needs no arguments
        xgboost.train(params, rows_of_this_worker)

XGBoost up to 2.0 read DMLC_* itself; since then a script must pass them on, the port as a number. Both forms work.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from shoal import contract

PATIENCE = 300.0  # seconds for the tracker to come
PAUSE = 0.02  # seconds between two looks
_NUMBERS = ("dmlc_tracker_port", "dmlc_retry", "dmlc_timeout")


def context() -> AbstractContextManager[Any]:
    """The communicator of this worker, for `with`; alone it is nothing, and the script trains by itself."""
    if "DMLC_TRACKER_URI" not in os.environ:
        return nullcontext()
    from xgboost.collective import CommunicatorContext

    communicator: AbstractContextManager[Any] = CommunicatorContext(**arguments({}))
    return communicator


def teach(collective: ModuleType) -> None:
    """From now on its `init`, and with it CommunicatorContext, finds this job's tracker. Harmless twice."""
    theirs = collective.init
    if getattr(theirs, "of_shoal", False):
        return

    def init(**args: Any) -> None:
        theirs(**arguments(args))

    init.__doc__ = theirs.__doc__
    init.of_shoal = True  # type: ignore[attr-defined]
    collective.init = init  # type: ignore[attr-defined]


def arguments(given: Mapping[str, Any], env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What was given, with numbers as numbers; without a tracker's address among it, this job's. Waits until the
    tracker is there."""
    said = {name: _number(name, value) for name, value in given.items()}
    named = {name.lower() for name in said}
    if "dmlc_tracker_uri" in named or not {"dmlc_communicator", "federated_server_address"}.isdisjoint(named):
        return said
    if "DMLC_TRACKER_URI" not in env:
        return said
    _wait(env["DMLC_TRACKER_URI"], int(env.get(contract.GATE, 0)))
    found = {"dmlc_tracker_uri": env["DMLC_TRACKER_URI"], "dmlc_tracker_port": int(env["DMLC_TRACKER_PORT"])}
    return {**found, "dmlc_task_id": env.get("DMLC_TASK_ID", "0"), **said}


def _number(name: str, value: Any) -> Any:
    return int(value) if name.lower() in _NUMBERS and isinstance(value, str) and value.isdigit() else value


def _wait(host: str, gate: int) -> None:
    until = time.monotonic() + PATIENCE
    while gate:
        try:
            socket.create_connection((host, gate), timeout=5).close()
            return
        except OSError as failed:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"the tracker at {host} did not come within {PATIENCE:g} s ({failed}); look at the log of tracker-0"
                ) from None
            time.sleep(PAUSE)
