"""The settings of serving: addresses, keys, processes, and the limits of requests and of clients.

`Settings` is the whole (`settings.py`); the settings of the log and of segments follow there.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from shared.contract.api_keys import advise_on_api_keys, seal_api_keys
from shared.contract.topic_config import DURABILITIES
from shared.http.cors import check_origins
from shared.http.public_address import check_networks
from shared.runtime.log_levels import check_levels
from shared.settings.setting import AUTO, GIB, KIB, MIB, Setting

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


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of serving."""

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

    cors_origins: Annotated[
        str,
        Setting(
            help="Origins whose web pages may use the server, such as `https://app.example.com`, separated "
            "by commas; in a file also a list. `*` is every origin. Empty is none.",
            unit="origins",
            is_list=True,
            normalise=check_origins,
        ),
    ] = ""

    webhook_private: Annotated[
        str,
        Setting(
            help="Networks that are not public and that webhooks may reach, such as `10.0.0.0/8`, separated "
            "by commas; in a file also a list. Empty is none.",
            unit="networks",
            is_list=True,
            normalise=check_networks,
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
            help="Number of shards of a new data directory; topicsd reshard changes an existing one. "
            "0 makes a stateless node: it has brokers and no topics of its own.",
            unit="shards",
            minimum=0,
            maximum=1024,
            auto="one for each core",
        ),
    ] = AUTO

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

    spool_bytes: Annotated[
        int,
        Setting(
            help="The body of one record (`application/octet-stream`) is kept in memory up to this size; "
            "a larger one is written to a file of the shard while it arrives.",
            unit="bytes",
            minimum=256 * KIB,
            maximum=64 * MIB,
        ),
    ] = 256 * KIB

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

    max_schedules: Annotated[
        int,
        Setting(help="Schedules of one queue.", unit="schedules", minimum=1, maximum=1000),
    ] = 100

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
