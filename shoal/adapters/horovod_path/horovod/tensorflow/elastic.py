from shoal.adapters.hvd.tensorflow.elastic import *  # noqa: F403
