"""XGBoost's tracker as a process of the job: `python -m shoal.adapters.tracker`. It tells the workers of each other and
ends when all of them have said goodbye."""

from __future__ import annotations

import os
import socket
import threading

from shoal import contract

PORT = contract.PORT_PREFIX + "TRACK"


def main() -> None:
    try:
        from xgboost.tracker import RabitTracker
    except ImportError as missing:
        raise SystemExit(
            f"this job's interpreter has no xgboost ({missing}); install xgboost-cpu there, or name an environment"
        ) from None
    host, workers = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_NUM_WORKER"])
    tracker = RabitTracker(n_workers=workers, host_ip=host, port=int(os.environ[PORT]), sortby="task")
    tracker.start()
    _open_gate(host, int(os.environ[contract.GATE]))
    print(f"the tracker waits for {workers} worker{'s'[: workers != 1]} at {host}:{os.environ[PORT]}", flush=True)
    tracker.wait_for()


def _open_gate(host: str, port: int) -> None:
    """Lets workers find out that the tracker is there: XGBoost's own next try to connect comes two seconds later."""
    gate = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)

    def admit() -> None:
        while True:
            gate.accept()[0].close()

    threading.Thread(target=admit, name="shoal-gate", daemon=True).start()


if __name__ == "__main__":
    main()
