"""Collective operations on tensors of TensorFlow 2, eager or inside `tf.function`, with gradients.

In a function they are calls of Python, which TensorFlow runs in the order they were written; so all workers meet in the
same order. XLA cannot compile them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.adapters.hvd import arrays, basics
from shoal.adapters.hvd.ask import ADASUM, AVERAGE, SUM
from shoal.adapters.hvd.ops import chosen
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.tensorflow.compression import Compression


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """`tf.custom_gradient`, which has no types."""
    found: Callable[..., Any] = tf.custom_gradient(function)
    return found


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Of a tensor, or of `tf.IndexedSlices`: then everybody's slices. Devices say nothing here: all goes through the
    host's memory."""
    how = chosen(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        return _slices(tensor, how, name, process_set)
    facts = (how, prescale_factor, postscale_factor, process_set)
    return grouped([tensor], name, compression, *facts)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    facts = (chosen(op, average), prescale_factor, postscale_factor, process_set)
    return grouped(tensors, name, compression, *facts)


def grouped(
    tensors: Sequence[Any],
    name: str | None,
    compression: Any,
    op: str,
    before: float,
    after: float,
    process_set: ProcessSet,
) -> list[Any]:
    """Several tensors in one operation."""
    pairs = [compression.compress(tf.convert_to_tensor(one)) for one in tensors]

    @_with_gradient
    def reduced(*every: Any) -> Any:
        def grad(*grads: Any) -> Any:
            return grouped(grads, None, Compression.none, op, before, after, process_set)

        def act(*given: Any) -> list[Any]:
            return arrays.reduce(given, name, op, before, after, process_set)

        return run(act, every), grad

    found = reduced(*(small for small, _ in pairs))
    return [compression.decompress(one, context) for one, (_, context) in zip(_list(found), pairs, strict=True)]


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Everybody's rows, one after another; the number of rows may differ."""

    @_with_gradient
    def gathered(one: Any) -> Any:
        def grad(upstream: Any) -> Any:
            whole = grouped([upstream], None, Compression.none, AVERAGE, 1.0, 1.0, process_set)[0]
            counts = run(_gather(None, process_set), [tf.reshape(tf.shape(one)[0], [1])])[0]
            begin = tf.reduce_sum(counts[: process_set.rank()])
            return whole[begin : begin + tf.shape(one)[0]]

        return run(_gather(name, process_set), [one], any_rows=True)[0], grad

    return gathered(tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    every = [tf.convert_to_tensor(one) for one in tensors]
    return run(_gather(name, process_set), every, any_rows=True)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    @_with_gradient
    def spread(one: Any) -> Any:
        def grad(upstream: Any) -> Any:
            whole = grouped([upstream], None, Compression.none, AVERAGE, 1.0, 1.0, process_set)[0]
            return whole if basics.rank() == root_rank else tf.zeros_like(whole)

        return run(lambda array: arrays.broadcast([array], root_rank, name, process_set), [one])[0], grad

    return spread(tf.convert_to_tensor(tensor))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """What came, and with `splits` also how many rows from each."""
    size = process_set.size() or 1

    def swap(array: Any, parts: Any) -> list[Any]:
        found, received = arrays.swap(array, parts, name, process_set)
        return [found, np.array(received, np.int32)]

    @_with_gradient
    def swapped(one: Any, parts: Any) -> Any:
        found, received = run(swap, [one, parts], any_rows=True)

        def grad(upstream: Any, _: Any = None) -> Any:
            back, _ = run(swap, [upstream, received], any_rows=True)
            return back, None

        return (found, received), grad

    given = tf.convert_to_tensor(tensor)
    if splits is None:
        rows = int(given.shape[0])
        return swapped(given, tf.constant(arrays.even(rows, size), tf.int32))[0]
    return swapped(given, tf.cast(splits, tf.int32))


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    every = grouped_reducescatter(
        [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name
    )
    return every[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    if op == ADASUM:
        raise NotImplementedError("reducescatter has no Adasum; use Sum or Average")
    pairs = [compression.compress(tf.convert_to_tensor(one)) for one in tensors]
    factor = prescale_factor * postscale_factor

    @_with_gradient
    def scattered(*every: Any) -> Any:
        def grad(*grads: Any) -> Any:
            share = factor * (process_set.size() or 1) if op == SUM else factor
            return run(_gather(None, process_set), [one * tf.cast(share, one.dtype) for one in grads], any_rows=True)

        def act(*given: Any) -> list[Any]:
            return arrays.scatter(given, name, op, prescale_factor, postscale_factor, process_set)

        return run(act, every, any_rows=True), grad

    found = scattered(*(small for small, _ in pairs))
    return [compression.decompress(one, context) for one, (_, context) in zip(_list(found), pairs, strict=True)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    arrays.meet(process_set)


def join() -> int:
    """Says that this worker has no more data: until all have said so it takes part in the others' all-reduces with
    zeros. Returns who said so last."""
    return arrays.join()


def _slices(slices: Any, op: str, name: str | None, process_set: ProcessSet) -> Any:
    if op not in (AVERAGE, SUM):
        raise NotImplementedError(f"{op} of tf.IndexedSlices: only Sum and Average are possible; use sparse_as_dense")
    values, indices = grouped_allgather([slices.values, slices.indices], name, process_set=process_set)
    share = process_set.size() or 1 if op == AVERAGE else 1
    return tf.IndexedSlices(values / tf.cast(share, values.dtype), indices, dense_shape=slices.dense_shape)


def _gather(name: str | None, process_set: ProcessSet) -> Callable[..., list[Any]]:
    return lambda *every: arrays.gather(every, name, process_set)


def run(act: Callable[..., Sequence[Any]], tensors: Sequence[Any], any_rows: bool = False) -> list[Any]:
    """Does it on copies as arrays: now, or whenever the function that is being traced runs."""
    types = [one.dtype for one in tensors]

    def on_arrays(*given: Any) -> list[Any]:
        found = act(*(_array(one) for one in given))
        return [np.asarray(one).astype(kind.as_numpy_dtype, copy=False) for one, kind in zip(found, types, strict=True)]

    if tf.executing_eagerly():
        return [tf.constant(one) for one in on_arrays(*(one.numpy() for one in tensors))]
    found = tf.numpy_function(on_arrays, list(tensors), types, stateful=True)
    for one, tensor in zip(found, tensors, strict=True):
        shape = tensor.shape
        one.set_shape([None, *shape[1:]] if any_rows and shape.rank else shape)
    return list(found)


def _array(given: Any) -> Any:
    """Memory of our own: TensorFlow's must not be written. numpy has no sums of bfloat16 that are worth the name."""
    array = np.array(given, copy=True)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (list, tuple)) else [found]
