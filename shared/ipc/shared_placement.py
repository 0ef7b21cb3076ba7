"""The placement that all processes of a server use: a file, and its version on the board.

V1  The supervisor replaces the file, then stores its version on the board. Each process reads the version,
    then the file: a replacement in between makes it read the file once more, and none is missed.
V2  A lookup costs one read of memory more than a fixed placement would: the version is compared at every use.
    Nothing is sent to the processes, so none can miss a change or receive it late.
V3  A process drops what it derived from a placement, such as a cache of request lines, in a callback that
    runs before the lookup returns.
V4  A process that cannot read the file continues with the previous placement and calls `on_failure`, which
    ends it: it must not create a topic that another shard has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shared.ipc.board import BROKER_COUNT, FIRST_BROKER, NEXT_RULE, PLACEMENT_VERSION, SLOT_COUNT
from shared.ipc.placement import Placement, PlacementError, decode_placement

logger = logging.getLogger(__name__)


class SharedPlacement:
    """The current placement. `words` are the head of the board, which has the number of shards.

    Without a `path` the placement is the rule without exceptions. Raises PlacementError and OSError when the
    file cannot be used.
    """

    __slots__ = ("_callbacks", "_on_failure", "_path", "current", "version", "words")

    def __init__(
        self,
        words: Sequence[int],
        path: str,
        on_failure: Callable[[OSError], object] = lambda error: None,
    ) -> None:
        self.words = words
        self._path = path
        self._on_failure = on_failure
        self._callbacks: list[Callable[[], object]] = []
        self.version = words[PLACEMENT_VERSION]
        """The version on the board when the file was last read."""
        self.current = self.read()

    @classmethod
    def fixed(cls, shard_count: int) -> SharedPlacement:
        """Return the rule without exceptions, which never changes."""
        return cls((0, shard_count, 0, 0, shard_count), "")

    @property
    def shard_count(self) -> int:
        """Return the number of shards of the server, which may be higher than that of the rule."""
        return self.words[SLOT_COUNT]

    @property
    def broker_numbers(self) -> range:
        """Return the owner numbers of the brokers of this node."""
        first = self.words[FIRST_BROKER]
        return range(first, first + self.words[BROKER_COUNT])

    def is_owner(self, number: int) -> bool:
        """Return whether a shard or a broker of this node has the owner number."""
        return number < self.shard_count or number in self.broker_numbers

    def is_of_rule(self, shard: int) -> bool:
        """Return whether the rule places topics at the shard; false for one that is being retired."""
        self.refresh()
        return self.current.is_of_rule(shard)

    @property
    def next_rule(self) -> int:
        """Return the number of shards of the rule for which topics are surveyed now, else 0."""
        return self.words[NEXT_RULE]

    def call_on_change(self, callback: Callable[[], object]) -> None:
        """Call `callback` after each change, before the first lookup that uses it returns."""
        self._callbacks.append(callback)

    def owner_of(self, name: str) -> int:
        """Return the shard that owns the topic now; `NO_SHARD` on a node without shards."""
        self.refresh()
        return self.current.owner_of(name)

    def shard_of(self, topic_id: int) -> int:
        """Return the shard that owns the topic with this id now."""
        self.refresh()
        return self.current.shard_of(topic_id)

    def refresh(self) -> None:
        """Read the file again if its version on the board has changed."""
        if self.words[PLACEMENT_VERSION] != self.version:
            self.reload()

    def reload(self) -> None:
        self.version = self.words[PLACEMENT_VERSION]
        try:
            self.current = self.read()
        except (OSError, PlacementError) as error:
            logger.error("placement: not reloaded: %s", error)
            self._on_failure(error if isinstance(error, OSError) else OSError(str(error)))
            return
        for callback in self._callbacks:
            callback()

    def read(self) -> Placement:
        """Return the placement in the file."""
        try:
            with open(self._path, "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return Placement(self.shard_count)
        return decode_placement(text, self._path, self.shard_count)
