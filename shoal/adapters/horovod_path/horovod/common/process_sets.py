from shoal.adapters.hvd.basics import add_process_set, remove_process_set
from shoal.adapters.hvd.sets import ProcessSet, global_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
