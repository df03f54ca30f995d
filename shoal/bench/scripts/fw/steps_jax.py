"""One small training step of jax on two workers, as often as its turn says."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from turns import take_turns

if os.environ["BENCH_SIDE"] == "ours":
    jax.distributed.initialize()
else:
    jax.distributed.initialize(os.environ["BENCH_COORDINATOR"], 2, int(os.environ["BENCH_RANK"]))
mesh = Mesh(np.array(jax.devices()), ("data",))
rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())


def loss_of(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)


@jax.jit
def update(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> list[jax.Array]:
    return [w - 0.01 * g for w, g in zip(weights, jax.grad(loss_of)(weights, x, y), strict=True)]


random = np.random.default_rng(0)
x = jax.make_array_from_process_local_data(rows, random.normal(size=(64, 256)).astype(np.float32))
y = jax.make_array_from_process_local_data(rows, random.normal(size=(64, 1)).astype(np.float32))
weights = [jax.device_put(jnp.zeros(shape), everywhere) for shape in ((256, 512), (512, 1))]


def step() -> None:
    global weights
    weights = update(weights, x, y)
    weights[0].block_until_ready()


step()
take_turns(step, jax.process_index())
