"""The options of a write, parsed and checked as `read_options.py` does for a read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared.contract.names import TOPIC_NAME_RULE, is_topic_name
from spark.errors import SourceError
from spark.source.read_options import canonical_options, server_url, whole_number

WRITE_OPTIONS: dict[str, str] = {
    "url": "the server to write to: http://host:4000",
    "apiKey": "the key for the server, when it requires one; it needs read, write, delete and admin",
    "topic": "the destination of all rows; without it the column `topic` names it",
    "recordsPerRequest": "maximum number of records in a request (1000)",
    "retrySeconds": "how long to retry while the server is busy or unavailable (60)",
    "stagingPrefix": "prefix of the topics that hold rows until their batch is complete (`spark-`)",
    "txnAppId": "with `txnVersion`: the name of the writer. A batch write is then applied once, also when "
    "its program runs again",
    "txnVersion": "the number of this write of the writer; each has a higher number than the one before",
    "checkpointLocation": "the checkpoint folder of a stream",
}
_NAMES = {name.lower(): name for name in WRITE_OPTIONS}
# Options that Spark adds by itself.
_SPARK_OPTIONS = ("queryname",)
# Leaves room for the query's id and the suffix in the name of a topic.
PREFIX_CHARACTERS_MAX = 128


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    api_key: str
    topic: str
    """The destination of all rows; empty if each row names its own."""
    chunk_records: int
    retry_s: float
    staging_prefix: str
    txn: tuple[str, int] | None
    """The writer's name and the number of this write."""


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    options = canonical_options(
        {key: text for key, text in raw.items() if key.lower() not in _SPARK_OPTIONS}, _NAMES
    )
    if not options.get("url"):
        raise SourceError("url: is missing; set it to the server to write to")
    topic, prefix = options.get("topic", ""), options.get("stagingPrefix", "spark-")
    if "topic" in options and not is_topic_name(topic):
        raise SourceError(f"topic: must match {TOPIC_NAME_RULE}, got {topic!r}")
    if not is_topic_name(prefix) or len(prefix) > PREFIX_CHARACTERS_MAX:
        raise SourceError(
            f"stagingPrefix: must match {TOPIC_NAME_RULE} and have at most {PREFIX_CHARACTERS_MAX} "
            f"characters, got {prefix!r}"
        )
    return WriteOptions(
        url=server_url(options["url"]),
        api_key=options.get("apiKey", ""),
        topic=topic,
        chunk_records=whole_number(options, "recordsPerRequest", 1000),
        retry_s=whole_number(options, "retrySeconds", 60, 0),
        staging_prefix=prefix,
        txn=_txn(options),
    )


def _txn(options: dict[str, str]) -> tuple[str, int] | None:
    if "txnAppId" not in options and "txnVersion" not in options:
        return None
    name = options.get("txnAppId", "")
    if not is_topic_name(name) or len(name) > PREFIX_CHARACTERS_MAX - len(".decided"):
        raise SourceError(f"txnAppId: must match {TOPIC_NAME_RULE}, as part of a topic name, got {name!r}")
    if "txnVersion" not in options:
        raise SourceError("txnVersion: is missing; set it to the number of this write of txnAppId")
    return name, whole_number(options, "txnVersion", 0, 0)


def write_option_table() -> str:
    """Return the table in docs/spark/writing.md."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in WRITE_OPTIONS.items()]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])
