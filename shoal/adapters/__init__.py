"""Inside the user's process: what a framework lacks to run as a job. One file or package per
framework, which imports it.

`horovod_path` holds packages by the names that scripts import (`horovod`, `byteps`); it is on the path only of jobs of
that framework.
"""
