"""The network interface by which a peer is reached.

Gloo tells the others the address that this machine's own name has, which on many machines is one of
the loopback interface. So it is told which interface to use: the one on the way to the meeting
place.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

if sys.platform == "linux":
    import fcntl

VARIABLE = "GLOO_SOCKET_IFNAME"
GET_ADDRESS = 0x8915  # the request SIOCGIFADDR of Linux


def use_interface(host: str, port: int) -> None:
    """Let gloo use the interface on the way to a host, unless the user has named one."""
    if VARIABLE in os.environ:
        return
    name = interface_towards(host, port)
    if name is not None:
        os.environ[VARIABLE] = name


def interface_towards(host: str, port: int) -> str | None:
    """The name of the interface on the way to a host; None where that cannot be told."""
    if sys.platform != "linux":
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # which sends nothing
            address = probe.getsockname()[0]
    except OSError:
        return None
    for _, name in socket.if_nameindex():
        if address_of(name) == address:
            return name
    return None


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface; None if it has none."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
