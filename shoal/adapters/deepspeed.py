"""`python -m shoal.adapters.deepspeed ARGUMENTS`: DeepSpeed's own starter on one worker, with all workers as its nodes.

It reads its nodes from a hostfile and would go to them by ssh; with `--no_ssh` it starts only those of its own number,
which is what every worker does. The user's arguments come after ours and win.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal import contract
from shoal.contract import Roster

WORKER = "worker"


def arguments(variables: Mapping[str, str], given: Sequence[str], hosts: Path) -> list[str]:
    """What the starter is to be called with; writes the hostfile."""
    roster = Roster.from_json(Path(variables[contract.ROSTER]).read_text())
    workers = sorted(roster.role(WORKER), key=lambda one: one.index)
    gpus = [int(one) for one in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    own = variables[contract.MEMBER]
    # A node's processes are numbered by how many each node has, so all must agree on the counts. Its GPUs are its own
    # affair: it must have as many as its highest number says.
    slots = {one.name: max(1, len(gpus)) for one in workers} | ({own: max(gpus) + 1} if gpus else {})
    hosts.write_text("".join(f"{name} slots={count}\n" for name, count in slots.items()))
    number = next(at for at, one in enumerate(workers) if one.name == own)
    told = ["--hostfile", str(hosts), "--no_ssh", "--node_rank", str(number)]
    told += ["--master_addr", variables["MASTER_ADDR"], "--master_port", variables["MASTER_PORT"]]
    if gpus and gpus != list(range(len(gpus))):
        mine = f"{own}:{','.join(map(str, gpus))}"
        told += ["--include", "@".join(mine if one.name == own else one.name for one in workers)]
    return [*told, *given]


def main(given: Sequence[str]) -> int:
    try:
        from deepspeed.launcher import runner  # type: ignore[import-not-found]
    except ImportError as missing:
        print(f"{sys.executable} has no DeepSpeed ({missing}); install deepspeed there", file=sys.stderr)
        return 127
    with tempfile.TemporaryDirectory(prefix="shoal-deepspeed-") as folder:
        runner.main(arguments(os.environ, given, Path(folder) / "hosts"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
