from shoal.adapters.hvd.torch.compression import Compression

__all__ = ["Compression"]
