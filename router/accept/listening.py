"""The sockets at which the server listens, and the file that says at which port.

The port is proved free with a plain bind first: with SO_REUSEPORT alone a second server would quietly share
the port of the first. Then each acceptor gets a socket of its own with SO_REUSEPORT, between which the kernel
spreads the connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

BACKLOG: Final = 4096

_SO_ATTACH_FILTER: Final = 26
_INSTRUCTION: Final = struct.Struct("@HBBI")
# A filter that accepts nothing of a packet with SYN, which begins a connection, and all of every other one.
_DROP_SYN: Final = b"".join(
    _INSTRUCTION.pack(*instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # BPF_LD | BPF_B | BPF_ABS: the flags in the header of TCP
        (0x45, 0, 1, 0x02),  # BPF_JMP | BPF_JSET | BPF_K: is SYN among them?
        (0x06, 0, 0, 0),  # BPF_RET | BPF_K: nothing
        (0x06, 0, 0, 0xFFFF_FFFF),  # BPF_RET | BPF_K: all
    )
)


class ListenRefused(Exception):
    """The server cannot listen where it was told to; a sentence for a person."""


def open_listeners(host: str, port: int, acceptor_count: int = 1) -> list[socket.socket]:
    """A listening socket for each acceptor, all at one port; ListenRefused when that cannot be."""
    assert acceptor_count >= 1
    family, address = _resolve(host, port)
    proof = _bound(family, address, is_shared=False)
    # The port that was found stays ours: it is bound again while the proof still holds it, which the kernel
    # allows once both say so.
    taken = proof.getsockname()
    listeners: list[socket.socket] = []
    try:
        proof.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(acceptor_count):
            listener = _bound(family, taken, is_shared=True)
            listeners.append(listener)
        for listener in listeners:
            listener.listen(BACKLOG)
    except (OSError, ListenRefused) as error:
        for listener in listeners:
            listener.close()
        if isinstance(error, ListenRefused):
            raise
        raise ListenRefused(_sentence(taken, error)) from None
    finally:
        proof.close()
    return listeners


def refuse_new(listener: socket.socket) -> None:
    """Let no further connection begin; those that have begun come into being and wait to be accepted.

    Between the last accept and the close of a listener the kernel would go on to make connections, which the
    close then resets, with the requests that were sent on them. So every SYN is dropped from here on: who
    begins to connect asks again a moment later and hears that nobody listens. The last packet of a handshake
    is let through, as that client takes its connection for made. Where the kernel does not take the filter
    there is that short gap, and nothing else is different.
    """
    drop_syn = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    program = struct.pack("@HP", len(_DROP_SYN) // _INSTRUCTION.size, ctypes.addressof(drop_syn))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def write_port_file(path: str, port: int) -> None:
    """The port as text, whole or not there at all."""
    unfinished = f"{path}.{os.getpid()}.tmp"
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(f"{port}\n")
    os.replace(unfinished, path)


def remove_port_file(path: str) -> None:
    """Where that cannot be, a new one cannot be written either, and that is told."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def port_of(listeners: Sequence[socket.socket]) -> int:
    return int(listeners[0].getsockname()[1])


def addresses_of(listeners: Sequence[socket.socket]) -> str:
    """Where they listen, each place once, for a person."""
    return ",".join(dict.fromkeys(address_text(*one.getsockname()[:2]) for one in listeners))


def address_text(host: str, port: int) -> str:
    """
    >>> address_text("127.0.0.1", 4000), address_text("::1", 4000)
    ('127.0.0.1:4000', '[::1]:4000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise ListenRefused(f"cannot resolve host {host}: {cause}") from None
    # A name that has addresses of both kinds is listened at where most clients try first.
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _bound(family: int, address: tuple[str, int], is_shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ListenRefused(_sentence(address, error)) from None
    return bound


def _sentence(address: tuple[str, int], error: OSError) -> str:
    place = address_text(*address[:2])
    if error.errno == errno.EADDRINUSE:
        return f"address in use: another program listens at {place}; choose another port with --port"
    return f"cannot listen at {place}: {error.strerror}"
