"""The verbs that change only the row of a topic, for every catalog that can change a row atomically."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from topicsd.catalog import row_changes
from topicsd.catalog.catalog import Fenced, NewTopic, Ownership, TopicRow


class RowVerbs(ABC):
    """A catalog may override a verb with a shorter way for its usual case."""

    @abstractmethod
    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Read the row, write what `decide` returns for it, and return that, atomically."""

    @abstractmethod
    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow: ...

    def create_all(self, new: Sequence[NewTopic], node: str) -> list[TopicRow | Fenced]:
        return [self._created(one, node) for one in new]

    def _created(self, one: NewTopic, node: str) -> TopicRow | Fenced:
        try:
            return self.create(one.name, one.topic_id, one.incarnation, node, one.ceiling)
        except Fenced as fenced:
            return fenced

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
