"""Strategy names to what carries them out; each loaded only when a run asks for it."""

from __future__ import annotations

from shoal.catalogue import Catalogue

SYNCHRONISERS = Catalogue(
    "strategy",
    {
        "allreduce": "shoal.train.sync.allreduce:AllReduce",
        "easgd": "shoal.train.sync.easgd:Elastic",
        "gossip": "shoal.train.sync.gossip:Gossip",
        "local-sgd": "shoal.train.sync.local_sgd:LocalSGD",
        "native": "shoal.train.sync.native:Native",
        "ps-async": "shoal.train.sync.ps:Async",
        "ps-softsync": "shoal.train.sync.ps:SoftSync",
        "ps-ssp": "shoal.train.sync.ps:StaleSync",
        "ps-sync": "shoal.train.sync.ps:Sync",
    },
    extras={},
)

PARTITIONS = Catalogue(
    "partition",
    {
        "fsdp": "shoal.train.partition.fsdp:Sharded",
        "pipeline": "shoal.train.partition.pipeline:Pipeline",
        "tensor": "shoal.train.partition.tensor:TensorParallel",
    },
)
