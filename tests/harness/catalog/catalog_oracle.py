"""What a catalog must do, written as naively as possible: one entry for each seq, no ranges.

Each verb returns the row and changes the state, or raises Fenced or ChangeRefused, like a catalog.
"""

from __future__ import annotations

from collections.abc import Sequence

from topicsd.catalog.catalog import ChangeRefused, Extent, Fenced, Lookup, NewTopic, Ownership, TopicRow


class OracleTopic:
    def __init__(self, topic_id: int, incarnation: int, owner: str, ceiling: int) -> None:
        self.topic_id = topic_id
        self.incarnation = incarnation
        self.owner = owner
        self.owner_epoch = 1
        self.ceiling = ceiling
        self.is_sealed = False
        self.sealed_key: str | None = None
        self.exported_to = 0
        self.trimmed_to = 0
        self.extent_of: dict[int, Extent] = {}
        """By seq: the extent that it is in."""

    def is_owned_by(self, ownership: Ownership) -> bool:
        return not self.is_sealed and self.is_last_of(ownership)

    def is_last_of(self, ownership: Ownership) -> bool:
        return (self.owner, self.incarnation, self.owner_epoch) == tuple(ownership)


class CatalogOracle:
    url = "oracle:"

    def __init__(self) -> None:
        self.topics: dict[str, OracleTopic] = {}
        self.forgotten: set[tuple[str, int]] = set()
        self.created: set[tuple[str, int, str]] = set()
        """Each topic that ever had a row: its name, its incarnation, and the node that created it."""

    def row(self, name: str) -> TopicRow | None:
        topic = self.topics.get(name)
        if topic is None:
            return None
        state = "sealed" if topic.is_sealed else "owned"
        first = min(topic.extent_of, default=topic.trimmed_to + 1)
        return TopicRow(
            name,
            topic.topic_id,
            topic.incarnation,
            topic.owner,
            topic.owner_epoch,
            topic.ceiling,
            first,
            topic.exported_to,
            "sealed" if state == "sealed" else "owned",
            topic.sealed_key,
        )

    def extents(self, name: str) -> list[Extent]:
        """Return all extents of a topic, in order."""
        topic = self.topics.get(name)
        return list(dict.fromkeys(topic.extent_of[seq] for seq in sorted(topic.extent_of))) if topic else []

    def _done(self, name: str) -> TopicRow:
        row = self.row(name)
        assert row is not None
        return row

    def _owned(self, name: str, ownership: Ownership) -> OracleTopic:
        topic = self.topics.get(name)
        if topic is None or not topic.is_owned_by(ownership):
            raise Fenced(name, self.row(name))
        return topic

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        if name not in self.topics:
            if (name, incarnation) in self.forgotten:
                raise Fenced(name, None)
            self.topics[name] = OracleTopic(topic_id, incarnation, node, ceiling)
            self.created.add((name, incarnation, node))
        topic = self._owned(name, Ownership(node, incarnation, 1))
        topic.ceiling = max(topic.ceiling, ceiling)
        return self._done(name)

    def create_all(self, new: Sequence[NewTopic], node: str) -> list[TopicRow | Fenced]:
        answers: list[TopicRow | Fenced] = []
        for one in new:
            try:
                answers.append(self.create(one.name, one.topic_id, one.incarnation, node, one.ceiling))
            except Fenced as fenced:
                answers.append(fenced)
        return answers

    def own(self, name: str, ownership: Ownership) -> Lookup:
        topic = self.topics.get(name)
        return Lookup(self.row(name), topic is not None and topic.is_owned_by(ownership))

    def raise_ceiling(self, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
        topic = self._owned(name, ownership)
        topic.ceiling = max(topic.ceiling, ceiling)
        return self._done(name)

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        topic = self._owned(name, ownership)
        added, removed = _seqs(add), _seqs(remove)
        if not added and not removed & topic.extent_of.keys() and max(removed) <= topic.trimmed_to:
            return self._done(name)
        span = range(min(added | removed), max(added | removed) + 1)
        present = [one for one in self.extents(name) if _seqs([one]) & set(span)]
        if add and present == list(add):
            return self._done(name)
        new = {seq: extent for seq, extent in topic.extent_of.items() if seq not in removed}
        may = present == list(remove) and not added & new.keys() and max(added, default=0) <= topic.ceiling
        if add and remove:
            ends_later = max(removed) == topic.exported_to < max(added) and min(added) == min(removed)
            may = may and (added == removed or (ends_later and added >= removed))
        elif add:
            may = may and min(added) > topic.exported_to
        new.update({seq: extent for extent in add for seq in _seqs([extent])})
        if new:
            may = may and len(new) == max(new) - min(new) + 1 and max(new) >= topic.exported_to
        if not may:
            raise ChangeRefused(name)
        topic.extent_of = new
        topic.exported_to = max(topic.exported_to, *added, 0)
        if removed and not add:
            topic.trimmed_to = max(removed)
        return self._done(name)

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        return [one for one in self.extents(name) if one.last_seq >= seq][:limit]

    def seal(self, name: str, ownership: Ownership, last_seq: int, key: str) -> TopicRow:
        topic = self.topics.get(name)
        if topic is not None and topic.incarnation == ownership.incarnation and topic.sealed_key == key:
            return self._done(name)
        topic = self._owned(name, ownership)
        if last_seq > topic.ceiling or last_seq != topic.exported_to:
            raise ChangeRefused(name)
        topic.ceiling, topic.is_sealed, topic.sealed_key = last_seq, True, key
        return self._done(name)

    def adopt(
        self, name: str, node: str, incarnation: int, owner_epoch: int, accept_loss: bool = False
    ) -> TopicRow:
        topic = self.topics.get(name)
        if topic is None:
            raise Fenced(name, None)
        if topic.is_owned_by(Ownership(node, incarnation, owner_epoch + 1)):
            return self._done(name)
        is_expected = (topic.incarnation, topic.owner_epoch) == (incarnation, owner_epoch)
        if not is_expected or not (topic.is_sealed or accept_loss):
            raise Fenced(name, self.row(name))
        topic.owner, topic.owner_epoch, topic.is_sealed = node, owner_epoch + 1, False
        return self._done(name)

    def forget(self, name: str, ownership: Ownership) -> None:
        if name in self.topics and not self.topics[name].is_last_of(ownership):
            raise Fenced(name, self.row(name))
        topic = self.topics.pop(name, None)
        if topic is not None and topic.owner_epoch > 1:
            self.forgotten.add((name, topic.incarnation))

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        names = [name for name in sorted(self.topics) if name.startswith(prefix) and name > after]
        return [self._done(name) for name in names[:limit]]

    def close(self) -> None:
        pass


def _seqs(extents: Sequence[Extent]) -> set[int]:
    return {seq for extent in extents for seq in range(extent.first_seq, extent.last_seq + 1)}
