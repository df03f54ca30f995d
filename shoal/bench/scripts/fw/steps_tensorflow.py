"""One small training step of tensorflow on two workers, as often as its turn says."""

import tensorflow as tf
from turns import take_turns

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    layers = [tf.keras.layers.Dense(512, activation="relu"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((256,)), *layers])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
x, y = tf.random.normal((64, 256)), tf.random.normal((64, 1))


@tf.function
def step() -> None:
    def replica() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))

    strategy.run(replica)


step()
take_turns(step, strategy.cluster_resolver.task_id)
