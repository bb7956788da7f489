"""Methods without a server, one process per client: each peer has its rows, and sees the others'
uploads.

Every peer runs the same round loop on the same uploads, and computes its own answers alone.
`group` is how bytes travel (torch.distributed), `transport` who gets what, `start` how a run begins
or goes on, `local` all peers on one machine.
"""
