"""TensorFlow's face against definitions and against plain TensorFlow on the joint batch, as functions that all workers
of a job run together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

import shoal.adapters.hvd.keras as hvd_keras
import shoal.adapters.hvd.tensorflow as hvd


def every(*shape: int) -> Any:
    return np.stack([brought(rank, *shape) for rank in range(hvd.size())])


def brought(rank: int, *shape: int) -> Any:
    return ((np.arange(np.prod(shape)) * 3 + rank * 2) % 5 + 1).astype(np.float32).reshape(shape)


def no_torch_is_needed() -> None:
    assert "torch" not in sys.modules


def operations() -> None:
    me, size = hvd.rank(), hvd.size()
    mine = tf.constant(brought(me, 3, 2))
    for op, fold in ((hvd.Sum, np.sum), (hvd.Average, np.mean), (hvd.Min, np.min), (hvd.Max, np.max)):
        np.testing.assert_allclose(hvd.allreduce(mine, op=op), fold(every(3, 2), axis=0), rtol=1e-6)
    half = hvd.allreduce(tf.cast(mine, tf.bfloat16), op=hvd.Sum)
    assert half.dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(half, tf.float32), every(3, 2).sum(0))
    np.testing.assert_array_equal(hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16), every(3, 2).sum(0))
    one, two = hvd.grouped_allreduce([mine, tf.constant([me])], op=hvd.Sum)
    np.testing.assert_array_equal(one, every(3, 2).sum(0))
    assert int(two[0]) == sum(range(size))
    rows = hvd.allgather(tf.fill([me + 1, 2], me))
    assert rows.numpy().tolist() == [[rank, rank] for rank in range(size) for _ in range(rank + 1)]
    assert hvd.broadcast(tf.constant([me]), size - 1).numpy().tolist() == [size - 1]
    assert hvd.alltoall(tf.range(size) + 10 * me).numpy().tolist() == [10 * rank + me for rank in range(size)]
    found, received = hvd.alltoall(tf.repeat(tf.range(size), 2), splits=[2] * size)
    assert found.numpy().tolist() == [me] * 2 * size and received.numpy().tolist() == [2] * size
    parts = hvd.reducescatter(tf.constant(brought(me, size + 1, 2)), op=hvd.Sum)
    np.testing.assert_array_equal(parts, np.array_split(every(size + 1, 2).sum(0), size)[me])
    slices = tf.IndexedSlices(tf.ones([1, 2]) * (me + 1), tf.constant([me]), dense_shape=[size, 2])
    np.testing.assert_allclose(
        tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum)), [[rank + 1.0] * 2 for rank in range(size)]
    )
    assert hvd.broadcast_object({"rank": me}, 1) == {"rank": 1} and hvd.allgather_object(me) == list(range(size))
    hvd.barrier()


def inside_a_function() -> None:
    @tf.function
    def step(x: Any) -> Any:
        total = hvd.allreduce(x, op=hvd.Sum)
        return total, hvd.allgather(total[:1]), hvd.broadcast(x, 1), hvd.size_op()

    for _ in range(3):
        total, rows, spread, size = step(tf.constant(brought(hvd.rank(), 4)))
        np.testing.assert_array_equal(total, every(4).sum(0))
        assert rows.shape == (hvd.size(),) and int(size) == hvd.size()
        np.testing.assert_array_equal(spread, brought(1, 4))


def variables_are_broadcast_inside_a_function_too() -> None:
    variables = [tf.Variable([float(hvd.rank())]), tf.Variable(hvd.rank()), keras.Variable([float(hvd.rank())])]

    @tf.function
    def spread(first: bool) -> None:
        if first:
            hvd.broadcast_variables(variables, root_rank=1)

    spread(True)
    assert [np.asarray(one).ravel().tolist() for one in variables] == [[1.0], [1], [1.0]]


def gradients_pass_through() -> None:
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum) * (hvd.rank() + 1.0))
    np.testing.assert_allclose(tape.gradient(loss, x), [sum(range(1, hvd.size() + 1))] * 2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.allgather(x))
    np.testing.assert_allclose(tape.gradient(loss, x), [1.0, 1.0])


def a_loop_of_ones_own_trains_one_model() -> None:
    """Against plain TensorFlow on the joint batch; eager and as a function."""
    for wrap in (lambda step: step, tf.function):
        model, plain = _model(hvd.rank()), _model(0)
        hvd.broadcast_variables(model.variables, root_rank=0)
        ours, other = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1, momentum=0.9)

        def mine(x: Any, y: Any, model: Any = model, ours: Any = ours) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            tape = hvd.DistributedGradientTape(tape)
            grads = tape.gradient(loss, model.trainable_variables)
            ours.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        step = wrap(mine)
        for number in range(4):
            step(*_batch(number, hvd.rank()))
            x, y = (np.concatenate(part) for part in zip(*(_batch(number, k) for k in range(hvd.size())), strict=True))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((plain(x) - y) ** 2)
            other.apply_gradients(
                zip(tape.gradient(loss, plain.trainable_variables), plain.trainable_variables, strict=True)
            )
        _alike(model, plain)


def fit_trains_one_model() -> None:
    """Keras's own loop, which would be compiled with XLA where nobody says otherwise."""
    keras.utils.set_random_seed(hvd.rank())
    model = _model(hvd.rank())
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.02))
    assert isinstance(optimizer, keras.optimizers.Adam) and type(optimizer).__name__ == "Adam"
    model.compile(optimizer=optimizer, loss="mse")
    callbacks = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(0.02, warmup_epochs=2),
    ]
    x, y = _batch(5, hvd.rank(), 64)
    said = model.fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0, callbacks=callbacks).history
    _alike(model)
    assert said["loss"][-1] < said["loss"][0]
    assert len(set(hvd.allgather_object(tuple(said["loss"])))) == 1
    np.testing.assert_allclose(
        said["lr"], [0.02 * (1 + 0.5 * (hvd.size() - 1)) / hvd.size(), 0.02, 0.02, 0.02], rtol=1e-5
    )


def a_rate_falls_by_steps() -> None:
    model = _model(0)
    model.compile(optimizer=hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    fall = hvd_keras.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5**epoch, start_epoch=1)
    said = model.fit(*_batch(1, hvd.rank()), epochs=3, verbose=0, callbacks=[fall]).history
    np.testing.assert_allclose(said["lr"], [0.1, 0.05, 0.025], rtol=1e-5)


def several_backward_passes_are_added_up() -> None:
    model, plain = _model(0), _model(0)
    ours = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)
    other = keras.optimizers.SGD(0.1)
    total = [np.zeros(one.shape, np.float32) for one in plain.trainable_variables]
    for number in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(_batch(number, hvd.rank())[0]) - _batch(number, hvd.rank())[1]) ** 2)
        ours.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        for rank in range(hvd.size()):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((plain(_batch(number, rank)[0]) - _batch(number, rank)[1]) ** 2)
            grads = tape.gradient(loss, plain.trainable_variables)
            total = [one + grad.numpy() / hvd.size() for one, grad in zip(total, grads, strict=True)]
    other.apply_gradients(zip(map(tf.constant, total), plain.trainable_variables, strict=True))
    _alike(model, plain)


def a_saved_model_comes_back_with_a_distributed_optimizer() -> None:
    model = _model(0)
    model.compile(optimizer=hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")
    model.fit(*_batch(1, hvd.rank()), epochs=1, verbose=0)
    path = f"model-{hvd.rank()}.keras"
    model.save(path)
    again = hvd_keras.load_model(path)
    assert isinstance(keras.models.load_model(path).optimizer, keras.optimizers.Adam), "loads without us too"
    again.fit(*_batch(2, hvd.rank()), epochs=1, verbose=0)
    _alike(again)


def join_with_uneven_data() -> None:
    for batch in range(hvd.rank() + 1):
        found = hvd.allreduce(tf.ones([2]), name=f"batch.{batch}", op=hvd.Sum)
        np.testing.assert_allclose(found, [hvd.size() - batch] * 2)
    assert hvd.join() == hvd.size() - 1


def _model(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])


def _batch(number: int, rank: int, rows: int = 8) -> tuple[Any, Any]:
    x = np.random.default_rng(100 * number + rank).normal(size=(rows, 4)).astype(np.float32)
    return x, x.sum(1, keepdims=True)


def _alike(model: Any, other: Any = None) -> None:
    flat = np.concatenate([one.ravel() for one in model.get_weights()])
    for theirs in hvd.allgather_object(flat):
        np.testing.assert_array_equal(flat, theirs)
    if other is not None:
        np.testing.assert_allclose(flat, np.concatenate([one.ravel() for one in other.get_weights()]), atol=1e-5)


OPERATIONS = (
    no_torch_is_needed,
    operations,
    inside_a_function,
    variables_are_broadcast_inside_a_function_too,
    gradients_pass_through,
    join_with_uneven_data,
)
TRAINING = (
    a_loop_of_ones_own_trains_one_model,
    fit_trains_one_model,
    a_rate_falls_by_steps,
    several_backward_passes_are_added_up,
    a_saved_model_comes_back_with_a_distributed_optimizer,
)


def main(checks: tuple[Callable[[], None], ...]) -> None:
    hvd.init()
    for check in checks:
        check()
        print(f"ok {check.__name__}", flush=True)
    print("all", flush=True)
