from shoal.adapters.hvd.torch.byteps import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
