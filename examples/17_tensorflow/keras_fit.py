"""Lesson 17, fourth part: `fit` of Keras 2 (tf_keras) under either strategy; Keras 3 has no `fit` for them.

    shoal run examples/17_tensorflow/keras_fit.py --framework tensorflow --strategy allreduce --workers 2 \
        --environment tensorflow-2.21 --env TF_USE_LEGACY_KERAS=1

With `--strategy ps-async --servers 1` the same script is the chief's, and Shoal's workers and server do the work.
"""

import json
import os

import numpy as np
import tensorflow as tf

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES, dtype=np.float32)
BATCH, STEPS = 32, 50


def main() -> None:
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    if "ps" in cluster:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def rows(_: tf.distribute.InputContext) -> tf.data.Dataset:
        x = tf.random.stateless_normal((1024, FEATURES), seed=(1, 2))
        y = tf.linalg.matvec(x, tf.constant(TRUE))
        return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(BATCH)

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(FEATURES,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    data = tf.keras.utils.experimental.DatasetCreator(rows)
    model.fit(data, epochs=3, steps_per_epoch=STEPS, verbose=2)
    learned = model.get_weights()[0][:, 0]
    print(f"furthest weight off by {np.abs(learned - TRUE).max():.4f}")


if __name__ == "__main__":
    main()
