"""Horovod's interface on Shoal's groups: what `import horovod.torch as hvd` finds where no Horovod is installed.

`table` decides, from what every worker asked, what is done next (pure); `engine` runs it in a thread of its own;
`exchange` does it on arrays of numpy. `torch`, `tensorflow` and `keras` are faces over the same engine. Semantics are
those of Horovod 0.28's documentation; the code is our own.
"""
