"""The statements about shared topics that SQLite and PostgreSQL both understand, and their rows.

Parameters are written `:name`, as SQLite has them. `topicsd/catalog/engines/sqlite_schema.py` says what each
table holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from topicsd.catalog.shared.shared_catalog import Claim, SharedExtent, SharedTopic

TOPIC_COLUMNS: Final = SharedTopic.__struct_fields__
EXTENT_COLUMNS: Final = SharedExtent.__struct_fields__

_TOPIC: Final = ", ".join(TOPIC_COLUMNS)
_EXTENT: Final = ", ".join(EXTENT_COLUMNS)


def _values(columns: Sequence[str]) -> str:
    return ", ".join(f":{one}" for one in columns)


SELECT_ID: Final = "SELECT id FROM topicsd_catalog"

SELECT_TOPIC: Final = f"SELECT {_TOPIC} FROM topicsd_shared_topics WHERE name = :name"

INSERT_TOPIC: Final = (
    f"INSERT INTO topicsd_shared_topics ({_TOPIC}) VALUES ({_values(TOPIC_COLUMNS)}) ON CONFLICT DO NOTHING"
)

UPDATE_TOPIC: Final = (
    f"UPDATE topicsd_shared_topics SET {', '.join(f'{one} = :{one}' for one in TOPIC_COLUMNS[1:])}"
    " WHERE name = :name"
)

SELECT_TOPICS: Final = (
    f"SELECT {_TOPIC} FROM topicsd_shared_topics"
    " WHERE name > :after AND name >= :prefix AND substr(name, 1, length(:prefix)) = :prefix"
    " ORDER BY name LIMIT :limit"
)

FORGET: Final = tuple(
    f"DELETE FROM topicsd_shared_{table} WHERE {column} = :name"
    for table, column in (
        ("extents", "topic"),
        ("parts", "topic"),
        ("producers", "topic"),
        ("claims", "topic"),
        ("compactions", "topic"),
        ("topics", "name"),
    )
)

SELECT_EXTENTS_FROM: Final = (
    f"SELECT {_EXTENT} FROM topicsd_shared_extents WHERE topic = :name AND last_seq >= :seq"
    " ORDER BY last_seq LIMIT :limit"
)

SELECT_EXTENTS_TO: Final = (
    f"SELECT {_EXTENT} FROM topicsd_shared_extents WHERE topic = :name AND last_seq > :after"
    " AND first_seq <= :last_seq ORDER BY last_seq"
)

INSERT_EXTENT: Final = (
    f"INSERT INTO topicsd_shared_extents (topic, {_EXTENT}) VALUES (:topic, {_values(EXTENT_COLUMNS)})"
)

DELETE_EXTENTS_BEFORE: Final = (
    "DELETE FROM topicsd_shared_extents WHERE topic = :name AND last_seq < :first_seq"
)

DELETE_EXTENTS_BETWEEN: Final = (
    "DELETE FROM topicsd_shared_extents WHERE topic = :name AND last_seq >= :first_seq"
    " AND last_seq <= :last_seq"
)

SELECT_CLAIM: Final = (
    "SELECT topic, compactor, claimed_ms, lease_ms FROM topicsd_shared_claims WHERE topic = :topic"
)

UPSERT_CLAIM: Final = (
    "INSERT INTO topicsd_shared_claims (topic, compactor, claimed_ms, lease_ms)"
    " VALUES (:topic, :compactor, :claimed_ms, :lease_ms) ON CONFLICT (topic) DO UPDATE SET"
    " compactor = excluded.compactor, claimed_ms = excluded.claimed_ms, lease_ms = excluded.lease_ms"
)

DELETE_CLAIM: Final = "DELETE FROM topicsd_shared_claims WHERE topic = :topic AND compactor = :compactor"

SELECT_COMPACTION: Final = "SELECT compaction FROM topicsd_shared_compactions WHERE topic = :name"

UPSERT_COMPACTION: Final = (
    "INSERT INTO topicsd_shared_compactions (topic, compaction) VALUES (:topic, :compaction)"
    " ON CONFLICT (topic) DO UPDATE SET compaction = excluded.compaction"
)

DELETE_COMPACTION: Final = "DELETE FROM topicsd_shared_compactions WHERE topic = :name"

UPSERT_NODE: Final = (
    "INSERT INTO topicsd_shared_nodes (name, node, beat_ms, expire_ms)"
    " VALUES (:name, :node, :now_ms, :expire_ms) ON CONFLICT (name) DO UPDATE SET"
    " node = excluded.node, beat_ms = excluded.beat_ms, expire_ms = excluded.expire_ms"
)

DELETE_NODE: Final = "DELETE FROM topicsd_shared_nodes WHERE name = :name"

DELETE_DEAD_NODES: Final = "DELETE FROM topicsd_shared_nodes WHERE beat_ms + expire_ms <= :now_ms"

SELECT_NODES: Final = (
    "SELECT node, :now_ms - beat_ms FROM topicsd_shared_nodes WHERE beat_ms + expire_ms > :now_ms"
    " ORDER BY name"
)

OLD_PARTS_AT_ONCE: Final = 5000
"""Deleted with each heartbeat of a node."""

DELETE_OLD_PARTS: Final = (
    "DELETE FROM topicsd_shared_parts WHERE (topic, append_id) IN (SELECT topic, append_id"
    f" FROM topicsd_shared_parts WHERE committed_ms < :before_ms LIMIT {OLD_PARTS_AT_ONCE})"
)

DELETE_OLD_MARKS: Final = "DELETE FROM topicsd_shared_condemned WHERE condemned_ms < :before_ms"

# The producers above the maximum, if they are silent: the one that was silent the longest first.
DELETE_SILENT_PRODUCERS: Final = (
    "DELETE FROM topicsd_shared_producers WHERE topic = :topic AND name IN (SELECT name FROM"
    " topicsd_shared_producers WHERE topic = :topic AND used_ms < :silent_ms ORDER BY used_ms, name LIMIT"
    " (SELECT count(*) FROM topicsd_shared_producers WHERE topic = :topic) - :producers_max)"
)


def topic_row(values: Sequence[Any]) -> SharedTopic:
    return SharedTopic(*values)


def extent_row(values: Sequence[Any]) -> SharedExtent:
    return SharedExtent(*values)


def claim_row(values: Sequence[Any]) -> Claim:
    return Claim(*values)


def is_claimed(claim: Claim | None, compactor: str, now_ms: int) -> bool:
    """Return whether a claim is of this compactor and has not ended."""
    return claim is not None and claim.compactor == compactor and now_ms < claim.claimed_ms + claim.lease_ms


def claimed(present: Claim | None, topic: str, compactor: str, lease_ms: int, now_ms: int) -> Claim | None:
    """Return the claim of a compactor, or None while another one has a claim."""
    if (
        present is not None
        and present.compactor != compactor
        and is_claimed(present, present.compactor, now_ms)
    ):
        return None
    return Claim(topic, compactor, now_ms, lease_ms)


def trimmed(topic: SharedTopic, to_seq: int, reason: str) -> tuple[int, int]:
    """Return `deleted_to` and `evicted_to` after a trim."""
    to_seq = min(to_seq, topic.head)
    if reason == "deleted":
        return max(topic.deleted_to, to_seq), topic.evicted_to
    return topic.deleted_to, max(topic.evicted_to, to_seq)
