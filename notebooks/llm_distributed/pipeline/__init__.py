"""Run one language model on several processes. Copy this folder; it needs `openvino` and `numpy` only.

* `ranks.Ranks(folders)`        starts a process for each folder, and generates with all of them
* `shares.plan(config, ranks)`  who holds what
* `graph.parallelise(model)`    puts `AllReduce`, an operation that adds the results of all processes, into a graph
* `group.TcpGroup`              the processes that add, over sockets; `mpi.MpiGroup` does the same over MPI
* `rank.Rank`, `worker`         what each process runs

This module imports nothing, because a process has to choose its cores before it imports openvino.
"""
