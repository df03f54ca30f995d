"""Lesson 17, third part: a script of TensorFlow 1, with its own servers, cluster flags and SyncReplicasOptimizer.

    shoal run examples/17_tensorflow/old_style.py --framework tensorflow --strategy ps-sync --workers 2 --servers 1 \
        --environment tensorflow-2.21 -- --job_name={role} --task_index={index} --ps_hosts={ps_hosts} \
        --worker_hosts={worker_hosts}

Shoal fills the braces in. Each worker sees half of the features: only together can they learn all eight weights.
"""

import time

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

flags = tf.app.flags
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "which one of them")
flags.DEFINE_string("ps_hosts", "", "host:port, …")
flags.DEFINE_string("worker_hosts", "", "host:port, …")
flags.DEFINE_integer("steps", 150, "updates")
FLAGS = flags.FLAGS

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES, dtype=np.float32)


def main(_: list[str]) -> None:
    workers = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": workers})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
        return

    is_chief = FLAGS.task_index == 0
    with tf.device(
        tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{FLAGS.task_index}")
    ):
        x = tf.placeholder(tf.float32, (None, FEATURES))
        y = tf.placeholder(tf.float32, (None,))
        weights = tf.get_variable("weights", (FEATURES,), initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weights) - y))
        here = tf.get_variable("here", (), tf.int32, tf.zeros_initializer(), trainable=False)
        arrive = here.assign_add(1, use_locking=True)
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(0.5), replicas_to_aggregate=len(workers), total_num_replicas=len(workers)
        )
        train = optimizer.minimize(loss, global_step=step)

    random = np.random.default_rng(FLAGS.task_index)
    blind = [feature for feature in range(FEATURES) if feature % len(workers) != FLAGS.task_index]
    hooks = [optimizer.make_session_run_hook(is_chief), tf.train.StopAtStepHook(last_step=FLAGS.steps)]
    with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=hooks, stop_grace_period_secs=1) as session:
        session.run_step_fn(lambda step_context: step_context.session.run(arrive))
        while session.run_step_fn(lambda step_context: step_context.session.run(here)) < len(workers):
            time.sleep(0.1)  # else the first worker might give all gradients before the second has come
        learned = np.zeros(FEATURES)
        while not session.should_stop():
            rows = random.normal(size=(64, FEATURES)).astype(np.float32)
            rows[:, blind] = 0.0
            learned, _, at = session.run([weights, train, step], {x: rows, y: rows @ TRUE})
            if at % 50 == 0:
                print(f"progress {at}/{FLAGS.steps}", flush=True)
    print(f"worker {FLAGS.task_index}: furthest weight off by {np.abs(learned - TRUE).max():.4f}")


if __name__ == "__main__":
    tf.app.run()
