"""One simulated run on several processes or machines, which trust each other.

Rank 0 is the server: it alone runs the method's server code, writes the folder and shows progress.
Every rank, rank 0 too, simulates its share of the clients with the vectorised engine and folds
their answers where they are. Sums are added in pairs of ranks by torch.distributed, stacked answers
are sent. Results are those of one process with as many threads in all, bit for bit.
"""
