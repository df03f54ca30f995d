"""`python -m shoal.adapters.mxnet`: the scheduler or a server of MXNet's key-value store, until the workers are done.

MXNet runs it when it is imported, by the role in DMLC_ROLE, and leaves when all workers have.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    role = os.environ.get("DMLC_ROLE", "")
    if role not in ("scheduler", "server"):
        print(
            f"shoal.adapters.mxnet: DMLC_ROLE is {role!r}; this process is for a scheduler or a server", file=sys.stderr
        )
        return 2
    print(f"MXNet's {role} of {os.environ.get('DMLC_NUM_WORKER')} workers", flush=True)
    import mxnet  # noqa: F401  serves here, and leaves the process when the workers are done

    print(f"shoal.adapters.mxnet: this MXNet was built without distributed stores; no {role} can run", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
