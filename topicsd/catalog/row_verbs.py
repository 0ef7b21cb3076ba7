"""The verbs that change only the row of a topic, for every catalog that can change a row atomically."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from topicsd.catalog import row_changes
from topicsd.catalog.catalog import Ownership, TopicRow


class RowVerbs(ABC):
    """A catalog may override a verb with a shorter way for its usual case."""

    @abstractmethod
    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Read the row, write what `decide` returns for it, and return that, atomically."""

    def raise_ceiling(self, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
        return self._change(name, lambda row: row_changes.raised(row, name, ownership, ceiling))

    def seal(self, name: str, ownership: Ownership, last_seq: int, key: str) -> TopicRow:
        return self._change(name, lambda row: row_changes.sealed(row, name, ownership, last_seq, key))

    def adopt(
        self, name: str, node: str, incarnation: int, owner_epoch: int, accept_loss: bool = False
    ) -> TopicRow:
        return self._change(
            name, lambda row: row_changes.adopted(row, name, node, incarnation, owner_epoch, accept_loss)
        )
