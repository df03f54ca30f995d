from shoal.adapters.hvd.torch.byteps import *  # noqa: F403
