"""Lesson 20: a JAX script on two workers, unchanged: `jax.distributed.initialize()` finds the others by variables.

    shoal run examples/20_jax/train.py --framework jax --workers 2 --environment jax-0.10

One program over the devices of both processes. Each worker brings its own rows, in which half of the features are zero:
only together can they learn all eight weights.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps

    jax.distributed.initialize()
    rank, size = jax.process_index(), jax.process_count()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    by_rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def loss_of(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((x @ weights - y) ** 2)

    @jax.jit
    def step(weights: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(loss_of)(weights, x, y)
        return weights - 0.3 * gradient, loss

    weights = jax.device_put(jnp.zeros(FEATURES), everywhere)
    random = np.random.default_rng(rank)
    blind = [feature for feature in range(FEATURES) if feature % size != rank]
    for number in range(1, steps + 1):
        rows = random.normal(size=(64, FEATURES)).astype(np.float32)
        rows[:, blind] = 0.0
        x = jax.make_array_from_process_local_data(by_rows, rows)
        y = jax.make_array_from_process_local_data(by_rows, rows @ TRUE)
        weights, loss = step(weights, x, y)
        if number % 50 == 0:
            print(f"progress {number}/{steps} loss={float(loss):.6f}", flush=True)
    learned = np.asarray(weights)
    print(f"rank {rank} of {size}: furthest weight off by {np.abs(learned - TRUE).max():.4f}")
    print("weights " + " ".join(f"{weight:.6f}" for weight in learned))


if __name__ == "__main__":
    main()
