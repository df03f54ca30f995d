"""Boosted trees from a file without a script: read, shard, train, evaluate, stop early, save; XGBoost and LightGBM.

Runs in the user's interpreter: the framework, numpy and scipy (which both frameworks need) and nothing else; pyarrow
only for Parquet.
"""
