"""The tables of catalogs in PostgreSQL: the statements from each version of the schema to the next one.

`topicsd/catalog/engines/sqlite_schema.py` says what the tables of shared topics hold.
"""

from __future__ import annotations

from typing import Final

from topicsd.catalog.engines.postgresql_functions import COMMIT, NOW

UPGRADES: Final = (
    (
        # Space in each page, so that a new version of a row goes where the old one is.
        'CREATE TABLE topicsd_topics (name text COLLATE "C" PRIMARY KEY, topic_id text NOT NULL,'
        " incarnation bigint NOT NULL, owner text NOT NULL, owner_epoch bigint NOT NULL,"
        " ceiling bigint NOT NULL, exported_from bigint NOT NULL, exported_to bigint NOT NULL,"
        " state text NOT NULL, sealed_key text) WITH (fillfactor = 50)",
        'CREATE TABLE topicsd_extents (topic text COLLATE "C" NOT NULL, first_seq bigint NOT NULL,'
        " last_seq bigint NOT NULL, objects text NOT NULL, first_ms bigint NOT NULL,"
        " last_ms bigint NOT NULL, owner_epoch bigint NOT NULL, generation bigint NOT NULL,"
        " PRIMARY KEY (topic, first_seq))",
    ),
    (
        'CREATE TABLE topicsd_forgotten (name text COLLATE "C" NOT NULL, incarnation bigint NOT NULL,'
        " PRIMARY KEY (name, incarnation))",
    ),
    (
        # Each commit writes the row of its topics again: space for the new versions in the same page.
        'CREATE TABLE topicsd_shared_topics (name text COLLATE "C" PRIMARY KEY, incarnation bigint NOT NULL,'
        " log_state text NOT NULL, head bigint NOT NULL, deleted_to bigint NOT NULL,"
        " evicted_to bigint NOT NULL, compacted_to bigint NOT NULL, created_ms bigint NOT NULL,"
        " config bytea NOT NULL, config_version bigint NOT NULL) WITH (fillfactor = 50)",
        'CREATE TABLE topicsd_shared_extents (topic text COLLATE "C" NOT NULL, first_seq bigint NOT NULL,'
        ' last_seq bigint NOT NULL, type text NOT NULL, key text COLLATE "C" NOT NULL,'
        " encoding text NOT NULL, byte_offset bigint NOT NULL, byte_length bigint NOT NULL,"
        " created_ms bigint NOT NULL, PRIMARY KEY (topic, last_seq))",
        "CREATE INDEX topicsd_shared_extents_of_key ON topicsd_shared_extents (key)",
        'CREATE TABLE topicsd_shared_parts (topic text COLLATE "C" NOT NULL,'
        ' append_id text COLLATE "C" NOT NULL, first_seq bigint NOT NULL, last_seq bigint NOT NULL,'
        " digest text NOT NULL, committed_ms bigint NOT NULL, PRIMARY KEY (topic, append_id))",
        "CREATE INDEX topicsd_shared_parts_by_age ON topicsd_shared_parts (committed_ms)",
        'CREATE TABLE topicsd_shared_producers (topic text COLLATE "C" NOT NULL,'
        ' name text COLLATE "C" NOT NULL, first_number bigint NOT NULL, last_number bigint NOT NULL,'
        " first_seq bigint NOT NULL, last_seq bigint NOT NULL, used_ms bigint NOT NULL,"
        " PRIMARY KEY (topic, name)) WITH (fillfactor = 50)",
        'CREATE TABLE topicsd_shared_claims (topic text COLLATE "C" PRIMARY KEY, compactor text NOT NULL,'
        " claimed_ms bigint NOT NULL, lease_ms bigint NOT NULL)",
        'CREATE TABLE topicsd_shared_compactions (topic text COLLATE "C" PRIMARY KEY,'
        " compaction bytea NOT NULL)",
        'CREATE TABLE topicsd_shared_condemned (key text COLLATE "C" PRIMARY KEY,'
        " condemned_ms bigint NOT NULL)",
        'CREATE TABLE topicsd_shared_nodes (name text COLLATE "C" PRIMARY KEY, node bytea NOT NULL,'
        " beat_ms bigint NOT NULL, expire_ms bigint NOT NULL)",
        NOW,
        COMMIT,
    ),
    ("CREATE INDEX topicsd_shared_condemned_by_age ON topicsd_shared_condemned (condemned_ms)",),
    (
        "CREATE TABLE topicsd_catalog (id text PRIMARY KEY)",
        "INSERT INTO topicsd_catalog (id) VALUES (replace(gen_random_uuid()::text, '-', ''))",
    ),
)
"""The statements from each version of the schema to the next one, from version 0, no tables."""
