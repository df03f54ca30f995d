"""Every figure by name, and the function that measures it; one function may give several figures in one run."""

from __future__ import annotations

from shoal.catalogue import Catalogue

# What belongs together: `shoal bench train` measures all that begin with one of these.
GROUPS = {"train": ("allreduce.", "ddp.", "fault.", "ps.", "straggler.", "world.")}

BENCHES = Catalogue(
    "bench",
    {
        "drain": "shoal.bench.drain:drain",
        "import": "shoal.bench.importing:importing",
        "launch.command": "shoal.bench.launch_command:launch_command",
        "launch.pytorch": "shoal.bench.launch_pytorch:launch_pytorch",
        "list.api": "shoal.bench.listing:listing",
        "list.cli": "shoal.bench.listing:listing",
        "logs.follow": "shoal.bench.log_followers:log_followers",
        "logs.follow.lag": "shoal.bench.log_followers:log_followers",
        "logs.ship": "shoal.bench.log_shipping:log_shipping",
        "scale.beat": "shoal.bench.scale:scale",
        "scale.join": "shoal.bench.scale:scale",
        "server.idle": "shoal.bench.memory:memory",
        "server.per_job": "shoal.bench.memory:memory",
        "steps.ddp": "shoal.bench.steps_ddp:steps_ddp",
    },
    extras={"launch.pytorch": "torch", "steps.ddp": "torch"},
)
