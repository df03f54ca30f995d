"""For JAX scripts: `shoal.jax.initialize()` joins the other workers; alone it does nothing."""

from shoal.adapters.jax import initialize

__all__ = ["initialize"]
