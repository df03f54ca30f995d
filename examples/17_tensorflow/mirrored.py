"""Lesson 17: a TensorFlow script on two workers, unchanged: MultiWorkerMirroredStrategy finds the others in TF_CONFIG.

    shoal run examples/17_tensorflow/mirrored.py --framework tensorflow --strategy allreduce --workers 2 \
        --environment tensorflow-2.21

Each worker sees half of the features, the others are zero there: only together can they learn all eight weights.
"""

import argparse

import numpy as np
import tensorflow as tf

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES, dtype=np.float32)


def samples(rank: int, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in which every size-th feature is this worker's, and the others are zero."""
    x = np.random.default_rng(rank).normal(size=(count, FEATURES)).astype(np.float32)
    x[:, [feature for feature in range(FEATURES) if feature % size != rank]] = 0.0
    return x, (x @ TRUE)[:, None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    steps = parser.parse_args().steps

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    rank, size = (resolver.task_id or 0), strategy.num_replicas_in_sync
    x, y = samples(rank, size, 64)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), tf.keras.layers.Dense(1, use_bias=False)])
        optimizer = tf.keras.optimizers.SGD(0.3)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        def replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y)) / size
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=(x, y)), axis=None)

    for number in range(1, steps + 1):
        loss = step(tf.constant(x), tf.constant(y))
        if number % 20 == 0:
            print(f"progress {number}/{steps} loss={float(loss):.6f}", flush=True)
    learned = model.trainable_variables[0].numpy()[:, 0]
    print(f"rank {rank} of {size}: furthest weight off by {np.abs(learned - TRUE).max():.4f}")
    print("weights " + " ".join(f"{weight:.6f}" for weight in learned))


if __name__ == "__main__":
    main()
