from shoal.adapters.hvd.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
