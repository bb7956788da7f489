"""The same run on real machines: sites that keep their rows, and a server that never sees them.

`coterie.network.site` is one site as a function of packets, `coterie.network.server` the other end.
Neither knows how packets travel.
"""
