"""Methods without a server, one process per client: each peer has its rows, and sees the uploads
of all others.

Every peer runs the same round loop on the same uploads; only its own uploads and scores are
computed from its rows. `peer` starts or resumes a run, `transport` passes packets between peers,
`group` gathers bytes with torch.distributed, `rendezvous` connects the peers, and `local` starts
all of them on one machine.
"""
