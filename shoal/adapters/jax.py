"""`shoal.jax.initialize()`: joins the other workers of a JAX job; alone it does nothing."""

from __future__ import annotations

import os
from typing import Any

from shoal import contract

COORDINATOR = "JAX_COORDINATOR_ADDRESS"


def initialize(**options: Any) -> None:
    """`jax.distributed.initialize` with what the job knows. Twice is once; options of JAX's own are handed on."""
    import jax

    size = int(os.environ.get(contract.SIZE, "1"))
    if COORDINATOR not in os.environ or size < 2 or jax.distributed.is_initialized():
        return
    jax.distributed.initialize(os.environ[COORDINATOR], size, int(os.environ[contract.RANK]), **options)
