"""The names of topics that became visible on this shard, for followers that look for new topics.

C1  The place in this list is a number that starts at random. So the place of a follower that asked an earlier
    process of the shard is unknown, and the follower gets the names of all topics again.
C2  Only the newest names are kept. A follower that asked before them gets the names of all topics, too.
C3  A topic that arrives from another shard or node counts as new: its former shard may not have reported it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

NAMES_MAX: Final = 1024
"""Names that are kept."""
_PLACE_BITS: Final = 61

OnCreation = Callable[[str], object]


class Creations:
    def __init__(self) -> None:
        self.place = secrets.randbits(_PLACE_BITS)
        """The number of the next new topic."""
        self._names: deque[str] = deque(maxlen=NAMES_MAX)
        self._listeners: dict[OnCreation, None] = {}

    def note(self, name: str) -> None:
        """Note that a topic became visible, and call the listeners."""
        self.place += 1
        self._names.append(name)
        for listener in list(self._listeners):
            listener(name)

    def since(self, place: int) -> list[str] | None:
        """Return the names from `place` on, in their order; None if they are not known (C1, C2)."""
        count = self.place - place
        if not 0 <= count <= len(self._names):
            return None
        return list(islice(self._names, len(self._names) - count, None))

    def listen(self, listener: OnCreation) -> None:
        """Call `listener` with the name of each new topic, in the turn in which it becomes visible."""
        self._listeners[listener] = None

    def unlisten(self, listener: OnCreation) -> None:
        self._listeners.pop(listener, None)
