from shoal.adapters.hvd.torch.elastic import TorchState

__all__ = ["TorchState"]
