from shoal.adapters.hvd.torch.functions import *  # noqa: F403
