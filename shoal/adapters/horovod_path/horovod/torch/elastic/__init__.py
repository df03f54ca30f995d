from shoal.adapters.hvd.torch.elastic import *  # noqa: F403
