"""The sockets at which the server listens, and the file that holds the port.

A plain bind first proves that the port is free: with SO_REUSEPORT alone, a second server would silently share
the port of the first. Then each acceptor has its own socket with SO_REUSEPORT, and the kernel distributes the
connections among them.
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
# A filter that drops each packet with SYN, which opens a connection, and accepts every other packet.
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
    """The server cannot listen at the configured address; the text is a sentence for a person."""


def open_listeners(host: str, port: int, acceptor_count: int = 1) -> list[socket.socket]:
    """Return one listening socket per acceptor, all at one port; raise ListenRefused."""
    assert acceptor_count >= 1
    family, address = _resolve(host, port)
    probe = _bind(family, address, is_shared=False)
    # The port stays ours: it is bound again while the probe socket still holds it, which the kernel allows
    # once both sockets have SO_REUSEPORT.
    bound_address = probe.getsockname()
    listeners: list[socket.socket] = []
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(acceptor_count):
            listener = _bind(family, bound_address, is_shared=True)
            listeners.append(listener)
        for listener in listeners:
            listener.listen(BACKLOG)
    except (OSError, ListenRefused) as error:
        for listener in listeners:
            listener.close()
        if isinstance(error, ListenRefused):
            raise
        raise ListenRefused(_bind_failure(bound_address, error)) from None
    finally:
        probe.close()
    return listeners


def refuse_new(listener: socket.socket) -> None:
    """Reject new connections, and complete those whose handshake has begun.

    Between the last accept and the close of a listener the kernel would still complete connections, and the
    close would reset them together with the requests sent on them. So every SYN is dropped from now on: a new
    client sends its SYN again a moment later and finds that the port is closed. The last packet of a
    handshake passes the filter, since that client considers its connection established. Where the kernel does
    not accept the filter, that short gap remains, and nothing else differs.
    """
    drop_syn = ctypes.create_string_buffer(_DROP_SYN, len(_DROP_SYN))
    program = struct.pack("@HP", len(_DROP_SYN) // _INSTRUCTION.size, ctypes.addressof(drop_syn))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def write_port_file(path: str, port: int) -> None:
    """Write the port as text, atomically: the file is complete or absent."""
    unfinished = f"{path}.{os.getpid()}.tmp"
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(f"{port}\n")
    os.replace(unfinished, path)


def remove_port_file(path: str) -> None:
    """Remove the port file, ignoring errors.

    Where removal fails, writing the new file fails too, and that is reported.
    """
    with contextlib.suppress(OSError):
        os.unlink(path)


def port_of(listeners: Sequence[socket.socket]) -> int:
    return int(listeners[0].getsockname()[1])


def addresses_of(listeners: Sequence[socket.socket]) -> str:
    """Return the distinct listening addresses as text for a person."""
    return ",".join(dict.fromkeys(address_text(*one.getsockname()[:2]) for one in listeners))


def address_text(host: str, port: int) -> str:
    """Return an address as text, with brackets around IPv6.

    >>> address_text("127.0.0.1", 4000), address_text("::1", 4000)
    ('127.0.0.1:4000', '[::1]:4000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise ListenRefused(f"cannot resolve host {host}: {cause}") from None
    # For a name with IPv4 and IPv6 addresses, use IPv4, which most clients try first.
    family, _, _, _, address = min(candidates, key=lambda one: one[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def _bind(family: int, address: tuple[str, int], is_shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ListenRefused(_bind_failure(address, error)) from None
    return bound


def _bind_failure(address: tuple[str, int], error: OSError) -> str:
    where = address_text(*address[:2])
    if error.errno == errno.EADDRINUSE:
        return f"address in use: another program listens at {where}; choose another port with --port"
    return f"cannot listen at {where}: {error.strerror}"
