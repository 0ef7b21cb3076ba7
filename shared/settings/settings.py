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

from shared.settings.brokers import BrokerSettings
from shared.settings.catalog_url import check_catalog_url
from shared.settings.serving import DAY_MS, LENGTH16_MAX, LENGTH32_MAX
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
from shared.settings.store_url import check_store_url


class Settings(BrokerSettings, frozen=True, kw_only=True):
    """The checked settings of a running server."""

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
            help="Folder for old sealed segments, for example on a larger and slower disk: short for "
            "`TOPICS_STORE_URL=file:///folder`. It must exist.",
            unit="path",
        ),
    ] = ""

    store_url: Annotated[
        str,
        Setting(
            help="Object store for old sealed segments: `file:///folder`, `s3://bucket/prefix`, `gs://…` or "
            "`az://…`; credentials come from the environment. Empty keeps all segments in the data "
            "directory.",
            unit="url",
            normalise=check_store_url,
        ),
    ] = ""

    store_cache_bytes: Annotated[
        int,
        Setting(
            help="Memory of a shard, or of a broker, for blocks of objects that were read from the store.",
            unit="bytes",
            minimum=1 * MIB,
            maximum=64 * GIB,
        ),
    ] = 64 * MIB

    catalog_url: Annotated[
        str,
        Setting(
            help="The catalog, in which nodes agree on the owner of each topic: `sqlite:`, "
            "`sqlite:///file`, `postgresql://`, `etcd://` or `oxia://`. Empty is `sqlite:` with an object "
            "store, and no catalog without one. `sqlite:` is a file in the folder of a `file:` store, and "
            "in the data directory otherwise.",
            unit="url",
            is_secret=True,
            normalise=check_catalog_url,
        ),
    ] = ""

    export_interval_ms: Annotated[
        int,
        Setting(
            help="Age of its first record at which a segment is sealed and exported to the object store: "
            "the longest time whose records are lost with the machine. Needs a catalog.",
            unit="ms",
            minimum=1000,
            maximum=DAY_MS,
            zero="off",
        ),
    ] = 300_000

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
            help="Bytes of a topic's newest sealed segments that stay in the data directory; the strictest "
            "of the three limits applies, 0 is off.",
            unit="bytes",
            minimum=0,
            maximum=1 << 50,
        ),
    ] = 0

    hot_retain_ms: Annotated[
        int,
        Setting(
            help="Age of its last record after which a sealed segment leaves the data directory.",
            unit="ms",
            minimum=1000,
            maximum=36_500 * DAY_MS,
            zero="off",
        ),
    ] = 0

    reader_grace_ms: Annotated[
        int,
        Setting(
            help="How long dropped files stay in `trash/`, and dropped objects in the store, for outside "
            "readers.",
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
