"""What `import horovod.tensorflow as hvd` gives a script: TensorFlow 2, eager and in functions."""

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
from shoal.adapters.hvd.tensorflow import (
    elastic,
)
from shoal.adapters.hvd.tensorflow.compression import (
    Compression,
)
from shoal.adapters.hvd.tensorflow.functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from shoal.adapters.hvd.tensorflow.gradients import (
    DistributedGradientTape,
)
from shoal.adapters.hvd.tensorflow.numbers import (
    local_rank_op,
    local_size_op,
    rank_op,
    size_op,
)
from shoal.adapters.hvd.tensorflow.ops import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from shoal.adapters.hvd.tensorflow.optimizer import (
    DistributedOptimizer,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
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
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
