"""`topicsd compactor`: compaction, retention and vacuum of shared topics, without a server.

Any number of compactors and brokers may look after the same topics: a claim keeps two away from one topic.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
from collections.abc import Iterable
from typing import Final

from shared.runtime.clock import SystemClock
from shared.runtime.log_setup import set_up_logging
from topicsd.broker.repeats import Repeats
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.scheduler import WAIT_MS, UpkeepLimits
from topicsd.broker.upkeep.store_clock import StoreClock
from topicsd.catalog.open_catalog import has_catalog_clock
from topicsd.cli.command import Command, write_json
from topicsd.cli.compactor.once import TopicDone, compact_once, done_text
from topicsd.cli.compactor.shared_places import add_places, shared_places, urls_of
from topicsd.cli.serve import is_loopback
from topicsd.offline.command_error import EXIT_OK, CommandError

PORT: Final = 4010
WORKERS_MAX: Final = 64
OBJECT_MIB_MAX: Final = 1024
DESCRIPTION: Final = """\
Compact shared topics, apply their retention, and vacuum their objects in the store, as brokers with the role
`compact` do. Several compactors may run at once. With --once it visits topics one after the other and ends;
otherwise it runs until SIGTERM or Ctrl-C, with GET /health, /metrics and /metrics/prometheus.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_places(parser)
    parser.add_argument("--host", default="127.0.0.1", help="host to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", metavar="N", type=int, default=PORT, help=f"0 selects a free port (default: {PORT})"
    )
    parser.add_argument(
        "--allow-insecure-no-auth",
        action="store_true",
        help="listen also where other machines can read the metrics",
    )
    parser.add_argument("--once", action="store_true", help="visit topics once, print what was done, and end")
    parser.add_argument(
        "--topic",
        metavar="T",
        action="append",
        default=[],
        help="a topic to begin with, also when the catalog cannot list; with --once only these (repeatable)",
    )
    parser.add_argument("--workers", metavar="N", type=int, default=2, help="topics at a time (default: 2)")
    parser.add_argument(
        "--pass-seconds", metavar="N", type=float, default=60.0, help="pause between passes (default: 60)"
    )
    parser.add_argument(
        "--vacuum-minutes",
        metavar="N",
        type=float,
        default=60.0,
        help="time between vacuums, over all processes; 0 runs none (default: 60)",
    )
    parser.add_argument(
        "--object-mib", metavar="N", type=int, default=64, help="size of a compacted object (default: 64)"
    )
    parser.add_argument(
        "--wait-minutes",
        metavar="N",
        type=float,
        default=WAIT_MS / 60_000,
        help=f"how long old slices wait for others (default: {WAIT_MS // 60_000}; with --once 0)",
    )
    parser.add_argument("--log", metavar="LEVELS", default="info", help="log levels (default: info)")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON document")


def run(args: argparse.Namespace) -> int:
    refuse_numbers(args)
    store_url, catalog_url = urls_of(args)
    clock = SystemClock()
    repeats = Repeats(clock)
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if args.once:
        with shared_places(store_url, catalog_url, clock, repeats) as places:
            if not has_catalog_clock(catalog_url):
                StoreClock(clock, places.store, repeats).check()
            once = CompactorLimits(object_bytes=args.object_mib << 20)
            done = compact_once(places, name, once, repeats, args.topic)
            if args.json:
                write_json(list(done))
            else:
                print_done(done)
        return EXIT_OK
    if not args.allow_insecure_no_auth and not is_loopback(args.host):
        raise CommandError(
            f"--host: {args.host} can be reached from other machines, which could read the metrics; "
            "allow this with --allow-insecure-no-auth"
        )
    # Imported here, so that the other commands do not pay for loading an HTTP server.
    from topicsd.cli.compactor.service import CompactorService

    set_up_logging(args.log, "compactor")
    with shared_places(store_url, catalog_url, clock, repeats) as places:
        limits = limits_of(args)._replace(has_catalog_clock=has_catalog_clock(catalog_url))
        service = CompactorService(clock, places, repeats, limits, name)
        asyncio.run(service.run(args.host, args.port))
    return EXIT_OK


def print_done(done: Iterable[TopicDone]) -> None:
    """Print a line for each topic as soon as it is done; Ctrl-C ends after that."""
    has_topics = False
    for one in done:
        has_topics = True
        print(done_text(one), flush=True)
    if not has_topics:
        print("no shared topics")


def limits_of(args: argparse.Namespace) -> UpkeepLimits:
    compactor = CompactorLimits(object_bytes=args.object_mib << 20, wait_ms=round(args.wait_minutes * 60_000))
    return UpkeepLimits(
        workers=args.workers,
        pass_seconds=args.pass_seconds,
        vacuum_seconds=args.vacuum_minutes * 60,
        compactor=compactor,
        seed_topics=tuple(args.topic),
    )


def refuse_numbers(args: argparse.Namespace) -> None:
    for flag, value, low, high in (
        ("--port", args.port, 0, 65535),
        ("--workers", args.workers, 1, WORKERS_MAX),
        ("--pass-seconds", args.pass_seconds, 1, 3600),
        ("--vacuum-minutes", args.vacuum_minutes, 0, 7 * 24 * 60),
        ("--object-mib", args.object_mib, 1, OBJECT_MIB_MAX),
        ("--wait-minutes", args.wait_minutes, 0, 7 * 24 * 60),
    ):
        if not low <= value <= high:
            raise CommandError(f"{flag}: must be from {low} to {high}, got {value:g}")


COMMAND: Final = Command(
    name="compactor",
    summary="compact shared topics, apply their retention, and vacuum their objects",
    description=DESCRIPTION,
    example="  topicsd compactor --store-url file:///srv/objects\n"
    "  topicsd compactor --store-url s3://bucket/topics --catalog-url postgresql://db/topics --once",
    add_arguments=add_arguments,
    run=run,
    exit_codes="exit codes: 0 done, 2 refused, or the store or the catalog did not answer",
)
