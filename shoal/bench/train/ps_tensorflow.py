"""TensorFlow's own parameter server, to be compared with: ParameterServerStrategy with a custom training loop, one
chief, two workers and one server of this machine, each a process told of the others by TF_CONFIG.

Runs in an interpreter that has tensorflow and nothing of ours: `python ps_tensorflow.py WIDTH BATCH STEPS`. Prints one
JSON line: steps a second, summed over the workers. The model is that of `ps_steps`: a perceptron with two hidden
layers.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

INPUTS, OUTPUTS = 256, 10
RATE = 0.01
WARM_UP = 20
ROLES = ("worker", "worker", "ps", "chief")


def main() -> None:
    width, batch, steps = (int(word) for word in sys.argv[1:4])
    if "TF_CONFIG" in os.environ:
        play(width, batch, steps)
    else:
        direct()


def direct() -> None:
    """Starts the four, passes on what the chief says, and ends the others, which serve for ever."""
    ports = free_ports(len(ROLES))
    cluster: dict[str, list[str]] = {}
    for role, port in zip(ROLES, ports, strict=True):
        cluster.setdefault(role, []).append(f"127.0.0.1:{port}")
    began = [start(cluster, role, ROLES[:at].count(role)) for at, role in enumerate(ROLES)]
    try:
        said, _ = began[-1].communicate(timeout=300)
    finally:
        for process in began:
            process.kill()
            process.wait()
    if began[-1].returncode:
        sys.exit(f"the chief ended with code {began[-1].returncode}")
    print(said.strip().splitlines()[-1], flush=True)


def start(cluster: dict[str, list[str]], role: str, index: int) -> subprocess.Popen[str]:
    told = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "GRPC_FAIL_FAST": "use_caller"}
    return subprocess.Popen(
        [sys.executable, *sys.argv],
        env={**os.environ, **quiet, "TF_CONFIG": told},
        stdout=subprocess.PIPE if role == "chief" else subprocess.DEVNULL,
        stderr=None if role == "chief" else subprocess.DEVNULL,
        text=True,
    )


def play(width: int, batch: int, steps: int) -> None:
    import tensorflow as tf

    # One thread each, as ours have: four processes share two cores.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer or "grpc",
            start=True,
        )
        server.join()
        return
    coordinate(tf, resolver, width, batch, steps)


def coordinate(tf, resolver, width: int, batch: int, steps: int) -> None:  # type: ignore[no-untyped-def]
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((INPUTS,)),
                tf.keras.layers.Dense(width, activation="relu"),
                tf.keras.layers.Dense(width, activation="relu"),
                tf.keras.layers.Dense(OUTPUTS),
            ]
        )
        # Plain SGD by hand: Keras 3 optimizers count their steps in a variable that every worker would wait for.
        variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def one_step():  # type: ignore[no-untyped-def]
        def replica():  # type: ignore[no-untyped-def]
            x = tf.random.stateless_uniform((batch, INPUTS), seed=(1, 2))
            y = tf.zeros((batch,), tf.int32)
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(RATE * gradient)
            return loss

        return strategy.run(replica)

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(one_step)
        coordinator.join()
        return time.perf_counter() - began

    run(WARM_UP)
    taken = run(steps)
    parameters = sum(int(tf.size(variable)) for variable in variables)
    print(json.dumps({"steps_per_s": steps / taken, "parameters": parameters}), flush=True)


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


if __name__ == "__main__":
    main()
