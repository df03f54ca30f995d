from shoal.adapters.hvd.torch.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
