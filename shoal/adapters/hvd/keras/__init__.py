"""What `import horovod.keras as hvd` and `import horovod.tensorflow.keras as hvd` give a script."""

from __future__ import annotations

from shoal.adapters.hvd.basics import (
    add_process_set,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)
from shoal.adapters.hvd.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from shoal.adapters.hvd.errors import (
    HorovodInternalError,
)
from shoal.adapters.hvd.keras import (
    callbacks,
    elastic,
)
from shoal.adapters.hvd.keras.model import (
    DistributedOptimizer,
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    load_model,
    reducescatter,
)
from shoal.adapters.hvd.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from shoal.adapters.hvd.sets import (
    ProcessSet,
    global_process_set,
)
from shoal.adapters.hvd.tensorflow.compression import (
    Compression,
)
from shoal.adapters.hvd.tensorflow.functions import (
    allgather_object,
    broadcast_object,
    broadcast_variables,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
