"""For XGBoost scripts: `with shoal.xgboost.context(): …` joins the other workers; alone it does nothing."""

from shoal.adapters.xgboost import context

__all__ = ["context"]
