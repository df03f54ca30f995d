"""What Shoal's process does for TensorFlow before TensorFlow is loaded."""

import pytest

from shoal.adapters.tensorflow import starts_servers


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\nserver = tf.distribute.Server(cluster, job_name='ps')",
        "import tensorflow.compat.v1 as tf\nserver = tf.train.Server(cluster)",
        "tf.compat.v1.train.Server(cluster, job_name=FLAGS.job_name).join()",
        "from tensorflow.distribute import Server\nServer(cluster)",
        "from tensorflow import distribute\nif ps:\n    distribute.Server(cluster).join()",
    ],
)
def test_a_script_with_its_own_servers_is_seen(source: str) -> None:
    assert starts_servers(source.encode())


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\nstrategy = tf.distribute.ParameterServerStrategy(resolver)",
        "# tf.distribute.Server(cluster)",
        "print('tf.train.Server(cluster)')",
        "http.Server(port)",
        "this is not python",
        "",
    ],
)
def test_others_leave_the_servers_to_shoal(source: str) -> None:
    assert not starts_servers(source.encode())
