"""The options of a read, parsed and checked; names, defaults and rules are those of Spark's Kafka source.

A wrong name or value raises `SourceError`, which names it and says what is allowed. As in Spark, option names
are case-insensitive. The table of options in the documentation and the errors are generated from `OPTIONS`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from shared.contract.names import TOPIC_NAME_RULE, is_topic_name
from shared.settings.catalog_url import SQLITE, refuse_catalog_url
from shared.settings.store_url import folder_url, refuse_store_url, store_folder
from spark.errors import SourceError

EARLIEST, LATEST = "earliest", "latest"
# The same bounds as numbers in Kafka's JSON.
EARLIEST_NUMBER, LATEST_NUMBER = -2, -1
SEQ_MAX = (1 << 63) - 1
RECORDS_PER_PARTITION = 1_000_000

OPTIONS: dict[str, str] = {
    "path": "the data directory; a server may be running on it. Or the URL of an object store, with backups "
    "or, together with `catalog`, with exported and shared topics",
    "url": "the server to read from: http://host:4000. Exactly one of `path` and `url` is required",
    "apiKey": "the key for the server, when it requires one",
    "coldDir": "the folder of the object store, when it is not where the server last said",
    "storeUrl": "the URL of the object store, when it is not where the server last said",
    "backup": "the id of a backup in the store `path`; default: the newest one when a query is planned",
    "catalog": "the URL of the catalog of the store `path`: sqlite:///file, postgresql://host/database, "
    "etcd://host:port or oxia://host:port; `sqlite:` is the file in the folder of a `file:` store",
    "subscribe": "names of topics, separated by commas",
    "topics": "the same as `subscribe`",
    "subscribePattern": "a regular expression that must match the whole name of a topic",
    "assign": 'JSON of topics with their shards: {"orders":[0]}',
    "columns": "`kafka` (the default) or `native`: seq, ts, tag, node, meta, data, data_bytes",
    "includeHeaders": "`true` adds the column headers: the entries of meta, and node",
    "startingOffsets": '`earliest`, `latest` (streams only) or JSON: {"orders":{"0":23}} or {"orders":23}, '
    "the first seq to read; -2 is earliest, -1 is latest. Default: earliest for a batch, latest for a stream",
    "endingOffsets": "`latest` (the default) or JSON: the seq to stop before; batch only",
    "startingTimestamp": "milliseconds since 1970: begin at the first record that is not older",
    "startingOffsetsByTimestamp": 'the same by topic: {"orders":{"0":1700000000000}}',
    "startingOffsetsByTimestampStrategy": "when every record is older: `error` (the default) or `latest`",
    "endingTimestamp": "milliseconds since 1970: stop before the first record that is not older; batch only",
    "failOnDataLoss": "`true` (the default): lost records, other than deleted ones, fail the query",
    "maxOffsetsPerTrigger": "maximum number of records in a micro-batch; streams only",
    "maxBytesPerTrigger": "approximate maximum of bytes in a micro-batch; streams only",
    "progressCursor": "name of a cursor of each topic in which a stream publishes its position; "
    "with `path` this needs `url` as well",
    "minPartitions": "minimum number of partitions, when there are as many records",
    "maxRecordsPerPartition": f"maximum number of records in a partition ({RECORDS_PER_PARTITION:,})",
    "mode": "`FAILFAST` (the default): damaged bytes fail the task; `PERMISSIVE`: they are skipped, "
    "counted and logged by the executor",
}
# Set by the rule of `narrow_reads.py` on a read that it passes filters to.
NARROWED = "narrowed"
_NAMES = {name.lower(): name for name in (*OPTIONS, NARROWED)}
_STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "progressCursor")
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")


class Selection(msgspec.Struct, frozen=True):
    """The topics to read: names or a pattern; `shards` holds the shards that `assign` names."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    shards: dict[str, list[int]] = {}

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None if self.pattern else name in self.names


class Bound(msgspec.Struct, frozen=True):
    """A bound of a read: a word, a seq by topic, or a time in ms, by topic or for all."""

    word: str = ""
    seqs: dict[str, int] | None = None
    ts: int | None = None
    times_ms: dict[str, int] | None = None


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """The data directory or the URL of a store; empty when a server is read."""
    backup: str
    """The id of a backup; empty for the newest one."""
    catalog: str
    url: str
    api_key: str
    progress_cursor: str
    store_url: str
    selection: Selection
    is_native: bool
    include_headers: bool
    start: Bound
    end: Bound
    starts_at_latest: bool
    fail_on_data_loss: bool
    max_offsets: int
    max_bytes: int
    min_partitions: int
    max_records: int
    is_permissive: bool
    is_narrowed: bool

    @property
    def is_directory(self) -> bool:
        return bool(self.path) and not _is_url(self.path)


def parse_options(raw: Mapping[str, str], is_stream: bool) -> ReadOptions:
    options = canonical_options(raw, _NAMES)
    for name in _BATCH_ONLY if is_stream else _STREAM_ONLY:
        if name in options:
            raise SourceError(f"{name}: must be set only for {'a batch read' if is_stream else 'a stream'}")
    path, url = options.get("path", ""), options.get("url", "")
    _check_location(options, path, url)
    _check_store(options, path, is_stream)
    return ReadOptions(
        # Tasks may run in other working directories than the driver.
        path=os.path.abspath(path) if path and not _is_url(path) else path,
        backup=options.get("backup", ""),
        catalog=options.get("catalog", ""),
        url=server_url(url) if url else "",
        api_key=options.get("apiKey", ""),
        progress_cursor=options.get("progressCursor", ""),
        store_url=options.get("storeUrl") or folder_url(options.get("coldDir", "")),
        selection=_selection(options),
        is_native=_one_of(options, "columns", "kafka", "native") == "native",
        include_headers=_flag(options, "includeHeaders", False),
        start=_start(options, is_stream),
        end=_end(options),
        starts_at_latest=_one_of(options, "startingOffsetsByTimestampStrategy", "error", "latest")
        == "latest",
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        max_offsets=whole_number(options, "maxOffsetsPerTrigger", 0),
        max_bytes=whole_number(options, "maxBytesPerTrigger", 0),
        min_partitions=whole_number(options, "minPartitions", 1),
        max_records=whole_number(options, "maxRecordsPerPartition", RECORDS_PER_PARTITION),
        is_permissive=_one_of(options, "mode", "FAILFAST", "PERMISSIVE") == "PERMISSIVE",
        is_narrowed=_flag(options, NARROWED, False),
    )


def _check_location(options: dict[str, str], path: str, url: str) -> None:
    if bool(path) == bool(url) and not (path and "progressCursor" in options):
        given = "both" if path else "neither"
        raise SourceError(
            f"path, url: set exactly one: path, a data directory, or url, a server; got {given}"
        )
    if "progressCursor" in options:
        if not url:
            raise SourceError("progressCursor: needs url, since the server keeps the cursor")
        if not is_topic_name(options["progressCursor"]):
            raise SourceError(f"progressCursor: must match {TOPIC_NAME_RULE}")
    for name in ("coldDir", "storeUrl"):
        if name in options and not path:
            raise SourceError(f"{name}: must be set only with path; a server knows its own object store")
        if name in options and "catalog" in options:
            raise SourceError(f"{name}: must not be set with catalog, since path names the object store")
    if "coldDir" in options and "storeUrl" in options:
        raise SourceError("coldDir: must not be set with storeUrl: both name the object store")
    problem = refuse_store_url(options["storeUrl"]) if options.get("storeUrl") else None
    if problem is not None:
        raise SourceError(f"storeUrl: {problem}")
    if "apiKey" in options and not url:
        raise SourceError("apiKey: must be set only with url")


def _check_store(options: dict[str, str], path: str, is_stream: bool) -> None:
    """Check the options of a read from an object store."""
    if not _is_url(path):
        for name in ("backup", "catalog"):
            if name in options:
                raise SourceError(f"{name}: must be set only when path is the URL of an object store")
        return
    problem = refuse_store_url(path)
    if problem is not None:
        raise SourceError(f"path: {problem}")
    if "catalog" in options:
        _check_catalog(options, path)
        return
    if is_stream:
        raise SourceError(
            "path: a backup does not change, so it must be read as a batch; to stream from an object store, "
            "set catalog to the URL of its catalog"
        )
    if "backup" in options and not re.fullmatch(r"[0-9A-Za-z.-]{1,100}", options["backup"]):
        raise SourceError(
            "backup: must be an id such as 20260101T000000.000Z-5f9a01c2, as `topicsd backup list` shows it"
        )


def _check_catalog(options: dict[str, str], path: str) -> None:
    if "backup" in options:
        raise SourceError("backup: must not be set with catalog, which names what path has")
    problem = refuse_catalog_url(options["catalog"])
    if problem is None and options["catalog"] == SQLITE and not store_folder(path):
        problem = (
            f"must name the file, as in sqlite:///var/lib/topicsd/catalog.sqlite, since {path} is no folder"
        )
    if problem is None and _has_password(options["catalog"]):
        problem = "must not contain a password, since plans may show it; set PGPASSWORD"
    if problem is not None:
        raise SourceError(f"catalog: {problem}")


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return parts.password is not None or any(name.endswith("password") for name in names)


def _is_url(path: str) -> bool:
    """Whether a path is a URL, also of an unknown kind.

    >>> _is_url("file:///srv/backups"), _is_url("hdfs://host/dir"), _is_url("./data"), _is_url("/data:1")
    (True, True, False, False)
    """
    return re.match(r"file:|[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def server_url(url: str) -> str:
    """Return the URL unchanged if it is valid."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise SourceError(f"url: must be an http or https URL such as http://127.0.0.1:4000, got {url!r}")
    return url


def schema_options(raw: Mapping[str, str]) -> tuple[bool, bool]:
    """Return whether the columns are native, and whether headers are requested."""
    options = canonical_options(raw, _NAMES)
    is_native = _one_of(options, "columns", "kafka", "native") == "native"
    has_headers = _flag(options, "includeHeaders", False)
    if is_native and has_headers:
        raise SourceError("includeHeaders: must not be set with columns=native, which have meta and node")
    return is_native, has_headers


def canonical_options(raw: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the options under the names in `names`, whose keys are in lower case."""
    options = {}
    for key, value in raw.items():
        name = names.get(key.lower())
        if name is None:
            known = ", ".join(one for one in names.values() if one != NARROWED)
            raise SourceError(f"{key}: unknown option; must be one of {known}")
        options[name] = value
    return options


def _selection(options: dict[str, str]) -> Selection:
    selectors = ("subscribe", "topics", "subscribePattern", "assign")
    given = [name for name in selectors if name in options]
    if len(given) != 1:
        raise SourceError(
            f"topics: set exactly one of {', '.join(selectors)}; got {', '.join(given) or 'none'}"
        )
    (name,) = given
    text = options[name]
    if name == "assign":
        shards = _json(name, text, dict[str, list[int]], '{"orders":[0]}')
        names = tuple(sorted(shards))
    elif name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise SourceError(f"subscribePattern: must be a regular expression: {error}") from None
        return Selection(pattern=text or "(?!)")
    else:
        shards, names = {}, tuple(sorted({part.strip() for part in text.split(",")} - {""}))
    if not names:
        raise SourceError(f"{name}: must name at least one topic")
    return Selection(names=names, shards=shards)


def _start(options: dict[str, str], is_stream: bool) -> Bound:
    if "startingTimestamp" in options:
        return Bound(ts=whole_number(options, "startingTimestamp", 0, 0))
    name = "startingOffsetsByTimestamp"
    if name in options:
        times_ms = _by_topic(name, options[name])
        if min(times_ms.values(), default=0) < 0:
            raise SourceError(f"{name}: must be at least 0 ms")
        return Bound(times_ms=times_ms)
    bound = _offsets(options, "startingOffsets", LATEST if is_stream else EARLIEST)
    if not is_stream and LATEST in (bound.word, *_words(bound)):
        raise SourceError("startingOffsets: must not be latest in a batch read, which begins before its end")
    return bound


def _end(options: dict[str, str]) -> Bound:
    if "endingTimestamp" in options:
        return Bound(ts=whole_number(options, "endingTimestamp", 0, 0))
    bound = _offsets(options, "endingOffsets", LATEST)
    if EARLIEST in (bound.word, *_words(bound)):
        raise SourceError("endingOffsets: must be latest or seqs as JSON, got earliest")
    return bound


def _words(bound: Bound) -> list[str]:
    words = {EARLIEST_NUMBER: EARLIEST, LATEST_NUMBER: LATEST}
    return [words[seq] for seq in (bound.seqs or {}).values() if seq in words]


def _offsets(options: dict[str, str], name: str, default: str) -> Bound:
    text = options.get(name, default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return Bound(word=text.lower())
    seqs = _by_topic(name, text)
    for topic, seq in seqs.items():
        if not EARLIEST_NUMBER <= seq <= SEQ_MAX:
            raise SourceError(
                f'{name}: "{topic}" must be a seq of at least 0, -1 (latest) or -2 (earliest), got {seq}'
            )
    return Bound(seqs=seqs)


def _by_topic(name: str, text: str) -> dict[str, int]:
    example = '{"orders":{"0":23}} or {"orders":23}'
    numbers = {}
    for topic, value in _json(name, text, dict[str, int | dict[str, int]], example).items():
        if isinstance(value, dict) and len(value) != 1:
            raise SourceError(f'{name}: "{topic}" must have one shard, such as {example}, got {len(value)}')
        numbers[topic] = next(iter(value.values())) if isinstance(value, dict) else value
    return numbers


def _json(name: str, text: str, kind: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except msgspec.DecodeError as error:
        raise SourceError(f"{name}: must be JSON such as {example}, got {text!r} ({error})") from None


def whole_number(options: dict[str, str], name: str, default: int, least: int = 1) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < least:
        raise SourceError(f"{name}: must be a whole number of at least {least}, got {text!r}")
    return int(text)


def _flag(options: dict[str, str], name: str, default: bool) -> bool:
    return _one_of(options, name, "true" if default else "false", "true", "false") == "true"


def _one_of(options: dict[str, str], name: str, default: str, *others: str) -> str:
    """Return the option as one of these words, ignoring case; `default` when it is absent."""
    text = options.get(name, default)
    for word in (default, *others):
        if text.lower() == word.lower():
            return word
    raise SourceError(f"{name}: must be one of {', '.join(sorted({default, *others}))}, got {text!r}")


def option_table() -> str:
    """Return the table in docs/spark/reading.md."""
    rows = [f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in OPTIONS.items()]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])
