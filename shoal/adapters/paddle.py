"""`python -m shoal.adapters.paddle SCRIPT ARGS…`: a script that trains with Paddle's parameter servers.

The wheels on PyPI are built without them and fail late, with an import error or by exchanging nothing: so this looks
first, and says which build is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shoal.adapters import script

NEEDED = "DistFleetWrapper"  # of Paddle's core: the client and server of its tables


def main(arguments: Sequence[str]) -> int:
    import paddle

    if not hasattr(paddle.base.core, NEEDED):
        print(
            f"shoal: this Paddle {paddle.__version__} ({_build(paddle)}) is built without parameter servers "
            f"(no {NEEDED} in its core); install a build made with WITH_DISTRIBUTE and WITH_PSCORE, or take "
            "--strategy allreduce",
            file=sys.stderr,
        )
        return 2
    return script.run(arguments[0], arguments[1:])


def _build(paddle: object) -> str:
    version = getattr(paddle, "version", None)
    cuda = getattr(version, "cuda", lambda: "False")()
    return f"commit {getattr(version, 'commit', 'unknown')[:10]}, {'CPU' if cuda == 'False' else f'CUDA {cuda}'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
