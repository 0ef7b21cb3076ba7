"""Requests for names that are asked about at another process, which continue in the order of their arrival.

Q1  Each of them is asked for at once, so one that waits at the other process delays no other one there.
Q2  One that continues here does so after those before it have continued or were answered: the answers may
    overtake each other, and the requests may not. Requests that wait for something (`WAITS`) write nothing,
    so those behind them go ahead.
Q3  A request for a name of which others are still asked joins them, also when its topic exists by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topicsd.service.call import Call
from topicsd.service.shards.remote_call import WAITS


class AskedRequest:
    """A request on its way; it is answered elsewhere, or continues here."""

    __slots__ = ("call", "continue_here", "is_local", "operation")

    def __init__(self, operation: str, call: Call, continue_here: Callable[[], object]) -> None:
        self.operation = operation
        self.call = call
        self.continue_here = continue_here
        self.is_local = False


class AskedNames:
    def __init__(self) -> None:
        self.by_name: Final[dict[str, list[AskedRequest]]] = {}
        """The requests that are asked for, or that wait for them, in the order of their arrival."""

    def add(self, operation: str, call: Call, continue_here: Callable[[], object]) -> AskedRequest:
        """Add a request that is asked for now; `end` is called with the answer."""
        request = AskedRequest(operation, call, continue_here)
        self.by_name.setdefault(call.name, []).append(request)
        return request

    def join(self, operation: str, call: Call, continue_here: Callable[[], object]) -> None:
        """Continue with a request of a known answer, after those before it (Q3)."""
        self.end(self.add(operation, call, continue_here), is_local=True)

    def end(self, request: AskedRequest, *, is_local: bool) -> None:
        """Continue here, in its turn, if `is_local`; otherwise the request is answered elsewhere."""
        name = request.call.name
        if request not in self.by_name.get(name, ()):
            return
        request.is_local = is_local
        if not is_local:
            self.by_name[name].remove(request)
        while (ready := self._next(name)) is not None:
            self.by_name[name].remove(ready)
            try:
                ready.continue_here()
            except Exception as error:
                ready.call.fail(ready.operation, error)
        if not self.by_name.get(name, True):
            del self.by_name[name]

    def _next(self, name: str) -> AskedRequest | None:
        for request in self.by_name.get(name, ()):
            if request.is_local:
                return request
            if request.operation not in WAITS:
                return None
        return None
