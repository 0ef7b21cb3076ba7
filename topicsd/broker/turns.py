"""Turns by topic: work begins when no earlier work has one of its topics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from topicsd.broker.steps import Resume


class Turn:
    """A place in the order, from `enter` to `leave`."""

    __slots__ = ("may_begin", "topics")

    def __init__(self, topics: Collection[str]) -> None:
        self.topics = frozenset(topics)
        self.may_begin: Resume | None = None


class TopicTurns:
    def __init__(self) -> None:
        self._turns: deque[Turn] = deque()

    def __len__(self) -> int:
        return len(self._turns)

    def enter(self, topics: Collection[str]) -> Turn:
        turn = Turn(topics)
        self._turns.append(turn)
        return turn

    def wait(self, turn: Turn, resume: Resume) -> None:
        """Resume when no turn that was entered earlier has a topic of this one."""
        turn.may_begin = resume
        self._advance()

    def leave(self, turn: Turn, on_left: Callable[[], object] = lambda: None) -> None:
        """End a turn; `on_left` is called before those that waited for it begin."""
        self._turns.remove(turn)
        on_left()
        self._advance()

    def _advance(self) -> None:
        earlier: set[str] = set()
        ready: list[Resume] = []
        for turn in self._turns:
            if turn.may_begin is not None and earlier.isdisjoint(turn.topics):
                ready.append(turn.may_begin)
                turn.may_begin = None
            earlier |= turn.topics
        for resume in ready:
            resume(None)
