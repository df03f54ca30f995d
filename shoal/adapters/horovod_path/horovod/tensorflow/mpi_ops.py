from shoal.adapters.hvd.tensorflow import *  # noqa: F403
