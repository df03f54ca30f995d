from shoal.adapters.hvd.tensorflow.functions import *  # noqa: F403
