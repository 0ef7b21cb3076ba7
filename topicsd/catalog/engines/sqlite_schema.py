"""The tables of catalogs in SQLite: the statements from each version of the schema to the next one.

Table names begin with `topicsd_`, as in a database that is shared with other programs. The tables of the
third version are those of shared topics:

    topicsd_shared_topics       one row for each topic
    topicsd_shared_extents      by topic and last seq
    topicsd_shared_parts        the append ids of the last REPEATED_MS, with their seqs
    topicsd_shared_producers    the last write of each producer of each topic
    topicsd_shared_claims       the rights to compact
    topicsd_shared_compactions  compactions that are not finished
    topicsd_shared_condemned    the blobs that are never committed
    topicsd_shared_nodes        the nodes, as of their last heartbeats

`topicsd_catalog` has one row, the id of the catalog.
"""

from __future__ import annotations

from typing import Final

UPGRADES: Final = (
    (
        "CREATE TABLE topicsd_topics (name TEXT PRIMARY KEY, topic_id TEXT NOT NULL,"
        " incarnation INTEGER NOT NULL, owner TEXT NOT NULL, owner_epoch INTEGER NOT NULL,"
        " ceiling INTEGER NOT NULL, exported_from INTEGER NOT NULL, exported_to INTEGER NOT NULL,"
        " state TEXT NOT NULL, sealed_key TEXT) WITHOUT ROWID",
        "CREATE TABLE topicsd_extents (topic TEXT NOT NULL, first_seq INTEGER NOT NULL,"
        " last_seq INTEGER NOT NULL, objects TEXT NOT NULL, first_ms INTEGER NOT NULL,"
        " last_ms INTEGER NOT NULL, owner_epoch INTEGER NOT NULL, generation INTEGER NOT NULL,"
        " PRIMARY KEY (topic, first_seq)) WITHOUT ROWID",
    ),
    (
        "CREATE TABLE topicsd_forgotten (name TEXT NOT NULL, incarnation INTEGER NOT NULL,"
        " PRIMARY KEY (name, incarnation)) WITHOUT ROWID",
    ),
    (
        "CREATE TABLE topicsd_shared_topics (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL,"
        " log_state TEXT NOT NULL, head INTEGER NOT NULL, deleted_to INTEGER NOT NULL,"
        " evicted_to INTEGER NOT NULL, compacted_to INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
        " config BLOB NOT NULL, config_version INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE topicsd_shared_extents (topic TEXT NOT NULL, first_seq INTEGER NOT NULL,"
        " last_seq INTEGER NOT NULL, type TEXT NOT NULL, key TEXT NOT NULL, encoding TEXT NOT NULL,"
        " byte_offset INTEGER NOT NULL, byte_length INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
        " PRIMARY KEY (topic, last_seq)) WITHOUT ROWID",
        "CREATE INDEX topicsd_shared_extents_of_key ON topicsd_shared_extents (key)",
        "CREATE TABLE topicsd_shared_parts (topic TEXT NOT NULL, append_id TEXT NOT NULL,"
        " first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, digest TEXT NOT NULL,"
        " committed_ms INTEGER NOT NULL, PRIMARY KEY (topic, append_id)) WITHOUT ROWID",
        "CREATE INDEX topicsd_shared_parts_by_age ON topicsd_shared_parts (committed_ms)",
        "CREATE TABLE topicsd_shared_producers (topic TEXT NOT NULL, name TEXT NOT NULL,"
        " first_number INTEGER NOT NULL, last_number INTEGER NOT NULL, first_seq INTEGER NOT NULL,"
        " last_seq INTEGER NOT NULL, used_ms INTEGER NOT NULL, PRIMARY KEY (topic, name)) WITHOUT ROWID",
        "CREATE TABLE topicsd_shared_claims (topic TEXT PRIMARY KEY, compactor TEXT NOT NULL,"
        " claimed_ms INTEGER NOT NULL, lease_ms INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE topicsd_shared_compactions (topic TEXT PRIMARY KEY, compaction BLOB NOT NULL)"
        " WITHOUT ROWID",
        "CREATE TABLE topicsd_shared_condemned (key TEXT PRIMARY KEY, condemned_ms INTEGER NOT NULL)"
        " WITHOUT ROWID",
        "CREATE TABLE topicsd_shared_nodes (name TEXT PRIMARY KEY, node BLOB NOT NULL,"
        " beat_ms INTEGER NOT NULL, expire_ms INTEGER NOT NULL) WITHOUT ROWID",
    ),
    ("CREATE INDEX topicsd_shared_condemned_by_age ON topicsd_shared_condemned (condemned_ms)",),
    (
        "CREATE TABLE topicsd_catalog (id TEXT PRIMARY KEY) WITHOUT ROWID",
        "INSERT INTO topicsd_catalog (id) VALUES (lower(hex(randomblob(16))))",
    ),
)
"""The statements from each version of the schema to the next one, from version 0, an empty file."""
