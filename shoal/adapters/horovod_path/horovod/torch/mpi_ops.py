from shoal.adapters.hvd.torch import *  # noqa: F403
