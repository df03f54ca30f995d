"""The real Horovod where one is installed, else Shoal's own."""

from shoal.adapters.aside import step_aside
from shoal.adapters.hvd import rendezvous

if step_aside(__name__):
    rendezvous.serve()
else:
    __version__ = "0.28.1"  # whose interface this is
