"""A proxy for TCP connections that can be cut, as a network between a node and a server is.

cut        what the node sees
"none"     everything passes
"refused"  connections are reset, and new ones too
"out"      what the node sends is lost: no request arrives
"back"     what the server sends is lost: requests are carried out, and no answer arrives
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

Cut = Literal["none", "refused", "out", "back"]
READ_BYTES: Final = 1 << 16
WAKE_SECONDS: Final = 0.05


class CutProxy:
    """The connections of one node to one server. Bytes that came while they were lost never arrive."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: Cut = "none"
        self._ends: dict[socket.socket, tuple[socket.socket, bool]] = {}
        """By socket: the other one of its connection, and whether it is the side of the node."""
        self._lost: set[socket.socket] = set()
        """The sockets of connections that lost bytes: they are of no use when the cut ends."""
        self._selector = selectors.DefaultSelector()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run)

    @property
    def cut(self) -> Cut:
        return self._cut

    @cut.setter
    def cut(self, cut: Cut) -> None:
        self._cut = cut

    def start(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        self._is_closing = True
        self._thread.join()
        for one in list(self._ends):
            one.close()
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select(WAKE_SECONDS):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._listener:
                    self._accept()
                elif one in self._ends:
                    self._pass(one)
            if self._cut == "refused":
                for one in list(self._ends):
                    self._close(one)
            elif self._cut == "none":
                for one in list(self._lost):
                    self._close(one)

    def _accept(self) -> None:
        node, _ = self._listener.accept()
        if self._cut == "refused":
            node.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port), timeout=5)
        except OSError:
            node.close()
            return
        for one, other, is_node in ((node, server, True), (server, node, False)):
            self._ends[one] = other, is_node
            self._selector.register(one, selectors.EVENT_READ)

    def _pass(self, one: socket.socket) -> None:
        other, is_node = self._ends[one]
        try:
            data = one.recv(READ_BYTES)
            if not data:
                self._close(one)
            elif self._cut == ("out" if is_node else "back"):
                self._lost.add(one)
            else:
                other.sendall(data)
        except OSError:
            self._close(one)

    def _close(self, one: socket.socket) -> None:
        if one not in self._ends:
            return
        for end in (one, self._ends[one][0]):
            with suppress(KeyError):
                self._selector.unregister(end)
            self._ends.pop(end, None)
            self._lost.discard(end)
            end.close()


@contextmanager
def cut_proxy(target_port: int) -> Iterator[CutProxy]:
    proxy = CutProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
