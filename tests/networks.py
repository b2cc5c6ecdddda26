"""A network of its own for a process and those that it starts, where nobody reaches what listens on all interfaces."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

NEW_NETWORK, NEW_USERS = 0x40000000, 0x10000000  # of unshare(2)
SET_FLAGS, UP_AND_RUNNING, DOWN = 0x8914, 0x41, 0  # of ioctl(2) on an interface


def enter_own_network() -> None:
    """Leaves the network of the machine for an empty one, in which this process has its own 127.0.0.1."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = NEW_NETWORK if os.geteuid() == 0 else NEW_NETWORK | NEW_USERS
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "no network of its own can be made")
    _set_loopback(UP_AND_RUNNING)


def cut_line() -> None:
    """Lets no packet through this process's own network any more, as where the machine at the other end vanishes."""
    _set_loopback(DOWN)


def _set_loopback(flags: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", flags))
