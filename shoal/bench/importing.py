"""What `import shoal` costs a fresh interpreter, timed inside it, and that nothing heavy comes along."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from shoal.bench.figure import Figure, Target
from shoal.errors import ShoalError

TIMES = 15
HEAVY = ("torch", "fastapi", "starlette", "uvicorn", "sqlalchemy", "ray", "pyspark", "kubernetes")
_PROGRAM = f"""
import sys, time
began = time.perf_counter()
import shoal
taken = time.perf_counter() - began
print(taken * 1000, *(name for name in {HEAVY!r} if name in sys.modules))
"""


def importing() -> list[Figure]:
    _one()  # reads the files into memory and compiles them
    times = [_one() for _ in range(TIMES)]
    note = f"median of {TIMES}, slowest {max(times):.1f} ms"
    return [Figure("import", median(times), Target("<", 150, "ms"), note=note)]


def _one() -> float:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    taken, *heavy = done.stdout.split()
    if heavy:
        raise ShoalError(f"import shoal also imports {', '.join(heavy)}; import them where they are used")
    return float(taken)
