from shoal.adapters.hvd.keras.callbacks import *  # noqa: F403
