"""Every setting of the server, declared once, with its default, unit, bounds and help.

Each setting is a field of `Settings`. All other forms derive from that declaration: the flag
(`--wal-file-bytes`), the name in the environment (`TOPICS_WAL_FILE_BYTES`), the key in a file
(`wal_file_bytes`), the parsing of its text, the refused values, and the table in docs/ops. A new setting is
one more field and nothing else.

The bounds are for users. Code that builds `Settings` directly may exceed them, as tests do that need a tiny
log file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from shared.contract.api_keys import advise_on_api_keys, seal_api_keys
from shared.contract.topic_config import DURABILITIES
from shared.runtime.log_levels import check_levels
from shared.settings.setting import (
    GIB,
    KIB,
    MIB,
    Setting,
    SettingField,
    declared_fields,
    render_bounds,
    show_value,
)

# The length fields of a frame have 16 bits for a tag and for a node, and 32 for the frame itself.
LENGTH16_MAX: Final = (1 << 16) - 1
LENGTH32_MAX: Final = (1 << 32) - 1

# `systemd/topicsd.service` waits longer than this before it kills the server.
DRAIN_MAX: Final = 300
DAY_MS: Final = 86_400_000


def without_brackets(host: str) -> str:
    """Remove the brackets around an IPv6 address.

    >>> without_brackets("[::1]"), without_brackets("::1")
    ('::1', '::1')
    """
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The checked settings of a running server."""

    host: Annotated[
        str,
        Setting(
            help="The address to listen on. An address that other machines can reach requires keys.",
            unit="address",
            minimum=1,
            maximum=253,
            normalise=without_brackets,
        ),
    ] = "127.0.0.1"

    port: Annotated[
        int,
        Setting(help="The port to listen on; 0 selects a free port.", unit="port", minimum=0, maximum=65535),
    ] = 4000

    port_file: Annotated[
        str, Setting(help="A file to which the server writes its port as text when it listens.", unit="path")
    ] = ""

    data_dir: Annotated[str, Setting(help="The data directory.", unit="path", minimum=1)] = "./topics-data"

    api_keys: Annotated[
        str,
        Setting(
            help="Keys with their rights: `key`, `key:scopes`, `key:scopes:prefixes` or `key::prefixes`, "
            "separated by commas; in a file also a list. Empty disables authentication. As a flag they are "
            "visible in the list of processes.",
            unit="keys",
            is_list=True,
            is_secret=True,
            normalise=seal_api_keys,
            advise=advise_on_api_keys,
        ),
    ] = ""

    allow_insecure_no_auth: Annotated[
        bool, Setting(help="Listen without keys on addresses that other machines can reach.")
    ] = False

    probe_auth: Annotated[bool, Setting(help="Require a key for `/v0/health` and `/v0/ready` too.")] = False

    log: Annotated[
        str,
        Setting(
            help="The log level, also by module: `info,topicsd.log=debug`.",
            unit="levels",
            minimum=1,
            normalise=check_levels,
        ),
    ] = "info"

    fronts: Annotated[
        int,
        Setting(help="Processes that accept connections.", unit="processes", minimum=1, maximum=64),
    ] = 1

    drain_seconds: Annotated[
        int,
        Setting(
            help="How long a shutdown waits for requests in flight.",
            unit="seconds",
            minimum=1,
            maximum=DRAIN_MAX,
        ),
    ] = 10

    memory: Annotated[
        bool,
        Setting(
            help="Keep everything in memory and write nothing: all topics are `ephemeral`, there is no data "
            "directory, and a process loses its topics when it ends."
        ),
    ] = False

    default_durability: Annotated[
        str,
        Setting(
            help="The durability class of topics that are created without one.",
            unit="class",
            choices=DURABILITIES,
        ),
    ] = "disk"

    shards: Annotated[
        int,
        Setting(
            help="Number of shards of a new data directory; 0 is one for each core. "
            "An existing directory keeps its number.",
            unit="shards",
            minimum=0,
            maximum=1024,
        ),
    ] = 0

    wal_file_bytes: Annotated[
        int,
        Setting(
            help="Size of a WAL file, reserved on the disk before it is used.",
            unit="bytes",
            minimum=64 * KIB,
            maximum=4 * GIB,
        ),
    ] = 64 * MIB

    max_body_bytes: Annotated[
        int,
        Setting(help="Body of one request.", unit="bytes", minimum=1, maximum=1 * GIB),
    ] = 64 * MIB

    max_response_bytes: Annotated[
        int,
        Setting(
            help="The response to one read. A larger record is returned alone.",
            unit="bytes",
            minimum=1,
            maximum=8 * MIB,
        ),
    ] = 1 * MIB

    max_batch_records: Annotated[
        int,
        Setting(help="Records in one write.", unit="records", minimum=1, maximum=1_000_000),
    ] = 10_000

    max_record_bytes: Annotated[
        int,
        Setting(help="`data` and `meta` of one record together.", unit="bytes", minimum=1, maximum=64 * MIB),
    ] = 1 * MIB

    max_meta_bytes: Annotated[
        int,
        Setting(help="`meta` of one record.", unit="bytes", minimum=0, maximum=1 * MIB),
    ] = 16 * KIB

    max_tag_bytes: Annotated[
        int,
        Setting(help="The tag of a record.", unit="bytes", minimum=1, maximum=LENGTH16_MAX),
    ] = 256

    max_node_bytes: Annotated[
        int,
        Setting(help="The node of a record.", unit="bytes", minimum=1, maximum=LENGTH16_MAX),
    ] = 128

    max_limit: Annotated[
        int,
        Setting(help="Records in the response to one read.", unit="records", minimum=1, maximum=100_000),
    ] = 1000

    max_claim: Annotated[
        int,
        Setting(help="Jobs in the response to one claim.", unit="jobs", minimum=1, maximum=100_000),
    ] = 1000

    max_idempotency_keys: Annotated[
        int,
        Setting(
            help="Idempotency keys that a shard remembers, at about 200 bytes of memory each; "
            "0 is unlimited.",
            unit="keys",
            minimum=0,
            maximum=1_000_000_000,
        ),
    ] = 8_000_000

    max_cursors: Annotated[
        int,
        Setting(help="Named cursors of one topic.", unit="cursors", minimum=1, maximum=10_000),
    ] = 1000

    max_producers: Annotated[
        int,
        Setting(
            help="Producers whose last write a topic remembers; 0 is unlimited.",
            unit="producers",
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 4096

    max_topics: Annotated[
        int,
        Setting(
            help="Topics that may exist; 0 is unlimited.", unit="topics", minimum=0, maximum=1_000_000_000
        ),
    ] = 100_000

    max_routers: Annotated[
        int,
        Setting(
            help="Routes between topics that may exist; 0 is unlimited.",
            unit="routes",
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 10_000

    max_total_bytes: Annotated[
        int,
        Setting(
            help="Live bytes of all topics together, above which writes are throttled; 0 is unlimited.",
            unit="bytes",
            minimum=0,
            maximum=1 << 50,
        ),
    ] = 0

    max_watch_sessions: Annotated[
        int,
        Setting(
            help="Watch sessions that may exist; 0 is unlimited.",
            unit="sessions",
            minimum=0,
            maximum=1_000_000_000,
        ),
    ] = 10_000

    max_watch_topics: Annotated[
        int,
        Setting(help="Topics that one watch session may have.", unit="topics", minimum=1, maximum=1000),
    ] = 256

    max_sse_connections: Annotated[
        int,
        Setting(
            help="Streams and WebSockets that may be open; 0 is unlimited.",
            unit="connections",
            minimum=0,
            maximum=1_000_000_000,
        ),
    ] = 10_000

    max_sse_connections_per_key: Annotated[
        int,
        Setting(
            help="Streams and WebSockets of one key that may be open; 0 is unlimited.",
            unit="connections",
            minimum=0,
            maximum=1_000_000_000,
        ),
    ] = 1000

    max_inflight_per_key: Annotated[
        int,
        Setting(
            help="Requests of one key that may be in flight; 0 is unlimited.",
            unit="requests",
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 1000

    sync_interval_ms: Annotated[
        int,
        Setting(
            help="Longest time until data of class `disk` is synced in the background.",
            unit="ms",
            minimum=1,
            maximum=1000,
        ),
    ] = 50

    max_waiting_bytes: Annotated[
        int,
        Setting(
            help="Bytes written and not yet synced, above which new writes are throttled. Above half of it "
            "every write waits for the disk.",
            unit="bytes",
            minimum=1 * MIB,
            maximum=4 * GIB,
        ),
    ] = 128 * MIB

    max_waiting_requests: Annotated[
        int,
        Setting(
            help="Writes waiting for a sync, above which new ones are throttled.",
            unit="requests",
            minimum=1,
            maximum=10_000_000,
        ),
    ] = 100_000

    page_cache_bytes: Annotated[
        int,
        Setting(
            help="Memory of a shard for pages of rendered records.",
            unit="bytes",
            minimum=1 * MIB,
            maximum=64 * GIB,
        ),
    ] = 64 * MIB

    checkpoint_interval_ms: Annotated[
        int,
        Setting(
            help="Longest time until a shard with writes runs a checkpoint. One also runs when a WAL file is "
            "full, and at a clean stop.",
            unit="ms",
            minimum=100,
            maximum=DAY_MS,
        ),
    ] = 60_000

    segment_max_events: Annotated[
        int,
        Setting(help="Records after which a segment is sealed.", unit="records", minimum=1, maximum=1 << 20),
    ] = 10_000

    segment_max_bytes: Annotated[
        int,
        Setting(
            help="Bytes after which a segment is sealed.", unit="bytes", minimum=4 * KIB, maximum=1 * GIB
        ),
    ] = 64 * MIB

    segment_max_age_ms: Annotated[
        int,
        Setting(
            help="Age of its first record at which a segment is sealed.",
            unit="ms",
            minimum=1000,
            maximum=365 * DAY_MS,
            zero="off",
        ),
    ] = 3_600_000

    cold_dir: Annotated[
        str,
        Setting(
            help="Directory for old sealed segments, for example on a larger and slower disk. It must exist. "
            "Empty disables tiering.",
            unit="path",
        ),
    ] = ""

    hot_retain_segments: Annotated[
        int,
        Setting(
            help="Newest sealed segments of a topic that stay in the data directory.",
            unit="segments",
            minimum=0,
            maximum=1_000_000,
        ),
    ] = 4

    hot_retain_bytes: Annotated[
        int,
        Setting(
            help="Bytes of a topic's newest sealed segments that stay in the data directory; the stricter of "
            "the two limits applies, 0 is off.",
            unit="bytes",
            minimum=0,
            maximum=1 << 50,
        ),
    ] = 0

    reader_grace_ms: Annotated[
        int,
        Setting(
            help="How long dropped files stay in `trash/` for outside readers.",
            unit="ms",
            minimum=0,
            maximum=30 * DAY_MS,
        ),
    ] = 600_000

    background_bytes_per_second: Annotated[
        int,
        Setting(
            help="Maximum rate at which a shard reads or writes in the background; the scrub and compaction "
            "each have it.",
            unit="bytes/s",
            minimum=64 * KIB,
            maximum=16 * GIB,
        ),
    ] = 8 * MIB

    def __repr__(self) -> str:
        values = ", ".join(
            f"{field.name}={show_value(field, value)!r}" for field, value in declared_values(self)
        )
        return f"Settings({values})"


DECLARED: Final[tuple[SettingField, ...]] = declared_fields(Settings)


def declared_values(settings: Settings) -> Iterator[tuple[SettingField, str | int | bool]]:
    for field in DECLARED:
        yield field, getattr(settings, field.name)


def settings_table() -> str:
    """Return all settings as a table of Markdown, as docs/ops/configuration.md has it."""
    rows = ["| variable | default | unit | bounds | meaning |", "|---|---|---|---|---|"]
    for field in DECLARED:
        shown = show_value(field, field.default)
        default = f"`{shown}`" if shown else ""
        rows.append(
            f"| `{field.variable}` | {default} | {field.setting.unit} | {_table_bounds(field)} "
            f"| {field.setting.help} |"
        )
    return "\n".join(rows) + "\n"


def _table_bounds(field: SettingField) -> str:
    # The bounds of a text apply to its length, which the column of bounds cannot express.
    return "" if field.kind is str else render_bounds(field)


def _check_declarations() -> None:
    largest = {field.name: field.setting.maximum or 0 for field in DECLARED}
    assert largest["max_tag_bytes"] <= LENGTH16_MAX
    assert largest["max_node_bytes"] <= LENGTH16_MAX
    # Half of the range is reserved for the frame's own fields: the longest legal frame stays far below 2**32.
    parts = largest["max_record_bytes"] + largest["max_tag_bytes"] + largest["max_node_bytes"]
    assert parts <= LENGTH32_MAX // 2


_check_declarations()
