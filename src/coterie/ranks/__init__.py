"""One simulated run on several processes or machines that trust each other.

Rank 0 is the server: it alone runs the method's server code, writes the folder and shows progress.
Every rank, including rank 0, simulates a shard of the clients with the vectorised engine and
aggregates their updates locally. torch.distributed adds the sums in pairs of ranks. Results are
bit-identical to those of one process with the same total number of threads.

Modules, in the order in which a run uses them: `launch` (torchrun starts the ranks), `connection`
(ranks connect and detect a lost rank), `group` (messages between ranks), `engine` (rank 0),
`worker` (all other ranks), `shard` (the clients of one rank).
"""
