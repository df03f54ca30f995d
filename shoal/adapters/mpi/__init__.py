"""MPI: mpirun wires the ranks up, and each rank is a process of the gang all the same, with its own log and limits.

Worker 0 starts mpirun, whose programs are relays: each hands what MPI told it to the worker of its number, which starts
the user's program with it, and leaves when that has ended. To other nodes mpirun gets by an agent of ours instead of
ssh: it asks a worker there, which knows the attempt's secret, to run mpirun's daemon.
"""
