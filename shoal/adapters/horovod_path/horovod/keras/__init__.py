from shoal.adapters.hvd.keras import *  # noqa: F403
