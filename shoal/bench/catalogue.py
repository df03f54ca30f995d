"""Every figure by name, and the function that measures it; one function may give several figures in one run."""

from __future__ import annotations

from shoal.catalogue import Catalogue

# What belongs together: `shoal bench train` measures all that begin with one of these.
GROUPS = {
    "fw": ("env.", "fw."),
    "train": ("allreduce.", "ddp.", "fault.", "ps.", "straggler.", "world."),
}

# Measured only when asked for by name: a machine may well have no card.
ON_REQUEST = ("gpu.",)

BENCHES = Catalogue(
    "bench",
    {
        "allreduce.100mb.2": "shoal.bench.allreduce_train:allreduce_2",
        "allreduce.100mb.4": "shoal.bench.allreduce_train:allreduce_4",
        "allreduce.10mb.2": "shoal.bench.allreduce_train:allreduce_2",
        "allreduce.10mb.4": "shoal.bench.allreduce_train:allreduce_4",
        "allreduce.1mb.2": "shoal.bench.allreduce_train:allreduce_2",
        "allreduce.1mb.4": "shoal.bench.allreduce_train:allreduce_4",
        "ddp.comm": "shoal.bench.allreduce_train:ddp_comm",
        "ddp.compute": "shoal.bench.allreduce_train:ddp_compute",
        "drain": "shoal.bench.drain:drain",
        "env.build": "shoal.bench.env:env_build",
        "env.cached": "shoal.bench.env:env_cached",
        "fault.server": "shoal.bench.ps_train:fault_server",
        "fault.worker": "shoal.bench.ps_train:fault_worker",
        "fault.worker.lost": "shoal.bench.ps_train:fault_worker",
        "fw.horovod.steps": "shoal.bench.steps_fw:horovod",
        "fw.hvd.allreduce.100mb": "shoal.bench.hvd_fw:allreduce",
        "fw.hvd.allreduce.10mb": "shoal.bench.hvd_fw:allreduce",
        "fw.hvd.allreduce.1mb": "shoal.bench.hvd_fw:allreduce",
        "fw.jax.steps": "shoal.bench.steps_fw:jax",
        "fw.lightgbm.steps": "shoal.bench.steps_fw:lightgbm",
        "fw.mxnet.steps": "shoal.bench.steps_fw:mxnet",
        "fw.paddle.steps": "shoal.bench.steps_fw:paddle",
        "fw.pytorch.steps": "shoal.bench.steps_fw:pytorch",
        "fw.tensorflow.steps": "shoal.bench.steps_fw:tensorflow",
        "fw.xgboost.steps": "shoal.bench.steps_fw:xgboost",
        "gpu.ps": "shoal.bench.gpu_train:gpu_ps",
        "gpu.save": "shoal.bench.gpu_train:gpu_save",
        "gpu.world.one": "shoal.bench.gpu_train:gpu_world",
        "import": "shoal.bench.importing:importing",
        "launch.command": "shoal.bench.launch_command:launch_command",
        "launch.pytorch": "shoal.bench.launch_pytorch:launch_pytorch",
        "list.api": "shoal.bench.listing:listing",
        "list.cli": "shoal.bench.listing:listing",
        "logs.follow": "shoal.bench.log_followers:log_followers",
        "logs.follow.lag": "shoal.bench.log_followers:log_followers",
        "logs.ship": "shoal.bench.log_shipping:log_shipping",
        "ps.memcpy": "shoal.bench.ps_train:ps_dense",
        "ps.rpc": "shoal.bench.ps_train:ps_dense",
        "ps.sparse": "shoal.bench.sparse_train:sparse",
        "ps.tensorflow": "shoal.bench.ps_train:ps_tensorflow",
        "scale.beat": "shoal.bench.scale:scale",
        "scale.join": "shoal.bench.scale:scale",
        "server.idle": "shoal.bench.memory:memory",
        "server.per_job": "shoal.bench.memory:memory",
        "steps.ddp": "shoal.bench.steps_ddp:steps_ddp",
        "straggler.async": "shoal.bench.ps_train:straggler_async",
        "straggler.gossip": "shoal.bench.gossip_train:straggler_gossip",
        "world.one": "shoal.bench.world_train:world_one",
    },
    extras={"launch.pytorch": "torch", "steps.ddp": "torch"},
)
