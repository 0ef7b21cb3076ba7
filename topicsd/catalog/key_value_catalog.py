"""A catalog in a key-value store that changes single keys by compare-and-set, such as etcd and Oxia.

The state document of a topic decides every verb, so each verb is one compare-and-set of that key.

V1  A change of extents is done when the state document holds it as `pending`; readers put it over the
    documents of the extents. Those are written afterwards, and then `pending` is cleared. The next change
    finishes what a lost process left. So extents exist only if the state document says so (R3).
V2  Before a document of an extent is changed, its version is read, and then the state document again: if
    that is still the same, the change is current, and a compare-and-set with the version overwrites nothing
    newer. A write that arrives late can only put back a document that was removed; `live_extents` ignores it.
V3  A topic is forgotten when its state document says so. Then its extents are deleted, the state document,
    and the name. The next `create` finishes what a lost process left. The mark that a topic must not be
    created again (K6) is written before the state document says that it is forgotten, and `create` reads the
    mark after the state document: a `create` that finds the topic gone finds the mark.
V4  `create` writes the name before the state document, with another nonce, so that a late deletion of the
    name fails. A name without a state document is no topic.
V5  A reader of extents reads all extents of the topic: the store has no search for the last key before
    another one in this interface. A verb that loses a compare-and-set starts again, for the time of the
    policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from shared.runtime.retries import Retries
from topicsd.catalog import row_changes
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    CatalogUnavailable,
    ChangeRefused,
    Extent,
    Lookup,
    Ownership,
    TopicRow,
)
from topicsd.catalog.engines.key_value import KeyValue, VersionedKey
from topicsd.catalog.engines.retries import repeat_request
from topicsd.catalog.key_documents import (
    NAMES,
    ExtentDocument,
    NoteDocument,
    PendingChange,
    StateDocument,
    extent_key,
    forgotten_key,
    last_extent_key,
    live_extents,
    name_key,
    new_nonce,
    state_key,
)
from topicsd.catalog.row_verbs import RowVerbs

T = TypeVar("T")

PAGE_KEYS: Final = 500
_LAST_KEY: Final = "~"
"""Sorts after every character of a topic name, and after every digit."""

_states = msgspec.json.Decoder(StateDocument)
_extents = msgspec.json.Decoder(ExtentDocument)


class StateEntry:
    """A state document with the version that it was read with; None and None when there is none."""

    __slots__ = ("document", "version")

    def __init__(self, entry: VersionedKey | None) -> None:
        self.document = None if entry is None else _states.decode(entry.value)
        self.version = None if entry is None else entry.version

    @property
    def row(self) -> TopicRow | None:
        return None if self.document is None or self.document.is_forgotten else self.document.row


class KeyValueCatalog(RowVerbs):
    def __init__(self, store: KeyValue, retries: Retries) -> None:
        self._store = store
        self._retries = retries

    @property
    def url(self) -> str:
        return self._store.url

    def close(self) -> None:
        self._store.close()

    # -- documents

    def _run(self, attempt: Callable[[], T]) -> T:
        return repeat_request(attempt, self._retries)

    def _state(self, name: str) -> StateEntry:
        return StateEntry(self._store.get(state_key(name)))

    def _put_state(self, name: str, document: StateDocument, version: int | None) -> None:
        value = msgspec.json.encode(replace(document, nonce=new_nonce()))
        if not self._store.put_if(state_key(name), value, version):
            raise self._conflict(name)

    def _conflict(self, name: str) -> CatalogUnavailable:
        return CatalogUnavailable(f"{self.url}: topic {name} changed at the same time")

    def _entries(self, first: str, end: str) -> list[VersionedKey]:
        entries: list[VersionedKey] = []
        while True:
            page = self._store.range(first, end, PAGE_KEYS)
            entries += page
            if len(page) < PAGE_KEYS:
                return entries
            first = page[-1].key + "\0"

    def _extent_entries(self, name: str) -> list[VersionedKey]:
        # `cur` sorts after the digits.
        return self._entries(extent_key(name, 0), last_extent_key(name))

    def _live(self, name: str, state: StateDocument) -> Sequence[Extent]:
        documents = [_extents.decode(entry.value) for entry in self._extent_entries(name)]
        live = live_extents(state, documents)
        if live is None:
            raise self._conflict(name)
        return live

    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Replace the row of a topic by what `decide` makes of it; a pending change stays."""

        def attempt() -> TopicRow:
            state = self._state(name)
            changed = decide(state.row)
            if state.document is not None and changed != state.row:
                self._put_state(name, replace(state.document, row=changed), state.version)
            return changed

        return self._run(attempt)

    # -- verbs

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        def attempt() -> TopicRow:
            state = self._state(name)
            if state.document is not None and state.document.is_forgotten:
                self._finish_forget(name, state)
                state = self._state(name)
            is_forgotten = state.row is None and self._store.get(forgotten_key(name, incarnation)) is not None
            row = row_changes.created(state.row, name, topic_id, incarnation, node, ceiling, is_forgotten)
            if state.document is None:
                self._put_note(name_key(name), name)
                self._put_state(name, StateDocument(row, birth=new_nonce()), None)
            elif row != state.row:
                self._put_state(name, replace(state.document, row=row), state.version)
            if self._store.get(name_key(name)) is None:
                # Another topic came and went between the two writes.
                self._put_note(name_key(name), name)
            return row

        return self._run(attempt)

    def _put_note(self, key: str, text: str) -> None:
        entry = self._store.get(key)
        self._store.put_if(
            key, msgspec.json.encode(NoteDocument(text)), None if entry is None else entry.version
        )

    def own(self, name: str, ownership: Ownership) -> Lookup:
        return row_changes.looked_up(self._run(lambda: self._state(name)).row, ownership)

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        first, last = row_changes.changed_range(add, remove)

        def attempt() -> TopicRow:
            row_changes.check_fence(self._state(name).row, name, ownership)
            state = self._finish_change(name)
            row_changes.check_fence(state.row, name, ownership)
            assert state.document is not None
            present = [
                extent
                for extent in self._live(name, state.document)
                if extent.first_seq <= last and extent.last_seq >= first
            ]
            try:
                change = row_changes.published(state.row, name, ownership, present, add, remove)
            except ChangeRefused:
                # The extents may be of a later change than the row: that one may have another owner.
                if self._state(name).version != state.version:
                    raise self._conflict(name) from None
                raise
            if change.add or change.remove:
                pending = PendingChange(tuple(change.add), tuple(change.remove))
                document = replace(
                    state.document, row=change.row, change=state.document.change + 1, pending=pending
                )
                self._put_state(name, document, state.version)
            return change.row

        row = self._run(attempt)
        # The change is done; the next one finishes it if this does not.
        with suppress(CatalogUnavailable):
            self._run(lambda: self._finish_change(name))
        return row

    def _finish_change(self, name: str) -> StateEntry:
        """Write the documents of the pending change, if there is one (V1); return the state after it."""
        state = self._state(name)
        if state.document is None or state.document.is_forgotten or state.document.pending is None:
            return state
        document, pending = state.document, state.document.pending
        starts = {extent.first_seq for extent in (*pending.add, *pending.remove)}
        entries = {start: self._store.get(extent_key(name, start)) for start in starts}
        if self._state(name).version != state.version:
            raise self._conflict(name)
        for extent in pending.add:
            entry = entries.pop(extent.first_seq)
            if entry is None or not _is_written(entry, document):
                value = msgspec.json.encode(ExtentDocument(extent, document.birth, document.change))
                version = None if entry is None else entry.version
                if not self._store.put_if(extent_key(name, extent.first_seq), value, version):
                    raise self._conflict(name)
        for entry in entries.values():
            if entry is not None:
                self._store.delete_if(entry.key, entry.version)
        if pending.add:
            self._put_note(last_extent_key(name), f"{pending.add[-1].first_seq:020d}")
        self._put_state(name, replace(document, pending=None), state.version)
        return self._state(name)

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        def attempt() -> list[Extent]:
            state = self._state(name)
            if state.row is None or state.document is None:
                return []
            return [one for one in self._live(name, state.document) if one.last_seq >= seq]

        return self._run(attempt)[: min(limit, EXTENTS_AT_ONCE)]

    def forget(self, name: str, ownership: Ownership) -> None:
        def attempt() -> StateEntry:
            state = self._state(name)
            row_changes.check_forget(state.row, name, ownership)
            if state.document is not None and not state.document.is_forgotten:
                if row_changes.leaves_mark(state.row):
                    self._put_note(forgotten_key(name, ownership.incarnation), name)
                self._put_state(name, replace(state.document, is_forgotten=True), state.version)
                return self._state(name)
            return state

        state = self._run(attempt)
        # The topic is forgotten; the next `create` finishes it if this does not.
        with suppress(CatalogUnavailable):
            self._finish_forget(name, state)

    def _finish_forget(self, name: str, state: StateEntry) -> None:
        if state.document is None or state.version is None or not state.document.is_forgotten:
            return
        note = self._store.get(name_key(name))
        last = self._store.get(last_extent_key(name))
        entries = [*self._extent_entries(name), *([last] if last is not None else [])]
        # Again, so that documents of a later topic are not deleted: they have later versions (V2).
        if self._state(name).version != state.version:
            raise self._conflict(name)
        for entry in entries:
            self._store.delete_if(entry.key, entry.version)
        if self._store.delete_if(state_key(name), state.version) and note is not None:
            self._store.delete_if(note.key, note.version)

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        limit = min(limit, ROWS_AT_ONCE)
        first, end = max(NAMES + prefix, NAMES + after + "\0"), NAMES + prefix + _LAST_KEY
        rows: list[TopicRow] = []
        while len(rows) < limit and first < end:
            start = first
            page = self._run(lambda: self._store.range(start, end, limit))  # noqa: B023
            states = [self._run(lambda: self._state(entry.key[len(NAMES) :])) for entry in page]  # noqa: B023
            rows += [state.row for state in states if state.row is not None]
            if len(page) < limit:
                break
            first = page[-1].key + "\0"
        return rows[:limit]


def _is_written(entry: VersionedKey, state: StateDocument) -> bool:
    document = _extents.decode(entry.value)
    return (document.birth, document.change) == (state.birth, state.change)
