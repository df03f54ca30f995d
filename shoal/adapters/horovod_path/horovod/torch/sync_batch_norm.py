from shoal.adapters.hvd.torch.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
