"""For LightGBM scripts: `lgb.train({**params, **shoal.lightgbm.params()}, …)` trains with the other workers."""

from shoal.adapters.lightgbm import params

__all__ = ["params"]
