"""joblib over the workers of a job: importing this makes the back end `shoal` known.

    import joblib, shoal.joblib

    with joblib.parallel_config(backend="shoal"):
        search.fit(X, y)                      # GridSearchCV(…, n_jobs=-1)

A script started with `--framework sklearn` needs none of these lines. Outside a job the back end is loky, joblib's own.
"""

from __future__ import annotations

from shoal.adapters.sklearn.backend import register

__all__ = ["register"]

register()
