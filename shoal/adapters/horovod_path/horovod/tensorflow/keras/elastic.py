from shoal.adapters.hvd.keras.elastic import *  # noqa: F403
