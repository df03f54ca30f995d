"""Lesson 17, second part: ParameterServerStrategy. This script is the chief's; workers and servers are Shoal's own.

    shoal run examples/17_tensorflow/parameter_server.py --framework tensorflow --strategy ps-async --workers 2 \
        --servers 1 --environment tensorflow-2.21

The chief hands out steps, each to whichever worker is free. A worker that dies is started again and goes on.
"""

import argparse

import numpy as np
import tensorflow as tf

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), tf.keras.layers.Dense(1, use_bias=False)])
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step() -> tf.Tensor:
        def replica() -> tf.Tensor:
            x = tf.random.normal((32, FEATURES))
            y = tf.linalg.matvec(x, tf.constant(TRUE))[:, None]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica)

    losses = [coordinator.schedule(step) for _ in range(steps)]
    coordinator.join()
    learned = model.trainable_variables[0].numpy()[:, 0]
    print(f"progress {steps}/{steps} loss={losses[-1].fetch():.6f}")
    print(f"furthest weight off by {np.abs(learned - TRUE).max():.4f}")
    print(f"the weights live on {model.trainable_variables[0].value.device}")


if __name__ == "__main__":
    main()
