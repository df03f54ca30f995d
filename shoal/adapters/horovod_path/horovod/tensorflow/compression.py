from shoal.adapters.hvd.tensorflow.compression import Compression

__all__ = ["Compression"]
