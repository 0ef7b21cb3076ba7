"""`topicsd topic seal`, `adopt` and `where`: end, begin and look up the ownership of a topic."""

from __future__ import annotations

import argparse
from typing import Any

from shared.runtime.clock import SystemClock
from topicsd.cli.command import write_json
from topicsd.cli.server.server_request import ServerRefused, add_server_arguments, ask_topic
from topicsd.offline.command_error import EXIT_OK, CommandError
from topicsd.offline.table import utc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic")
    add_server_arguments(parser)


def add_seal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="also seal an ephemeral topic with records, which are in memory only and are dropped",
    )
    add_arguments(parser)


def add_adopt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="take over from a node that is gone for good, without the records that it had not exported",
    )
    add_arguments(parser)


def run_where(args: argparse.Namespace) -> int:
    row = ask_topic(args.url, "GET", args.name, "/owner")
    return _show(args, row, _row_sentence(row))


def run_seal(args: argparse.Namespace) -> int:
    try:
        row, seconds = _timed(args, "/seal", {"accept_loss": args.accept_loss})
    except ServerRefused as refused:
        if refused.code != "topic_not_empty":
            raise
        raise CommandError(str(refused).replace("set accept_loss", "seal it with --accept-loss")) from None
    return _show(args, row, f"{_row_sentence(row)}; the seal took {seconds:.1f} s")


def run_adopt(args: argparse.Namespace) -> int:
    try:
        row, seconds = _timed(args, "/adopt", {"accept_loss": args.accept_loss})
    except ServerRefused as refused:
        if refused.code != "topic_moved" or args.accept_loss:
            raise
        raise CommandError(
            f'topic "{args.name}" is owned by node {refused.detail["node"]}: seal it there, or adopt it with '
            "--accept-loss if that node is gone for good"
        ) from None
    return _show(args, row, f"{_row_sentence(row)}; the adopt took {seconds:.1f} s{_loss_sentence(row)}")


def _timed(args: argparse.Namespace, action: str, body: object) -> tuple[dict[str, Any], float]:
    clock = SystemClock()
    started = clock.monotonic()
    return ask_topic(args.url, "POST", args.name, action, body), clock.monotonic() - started


def _show(args: argparse.Namespace, row: dict[str, Any], sentence: str) -> int:
    if args.json:
        write_json(row)
    else:
        print(sentence)
    return EXIT_OK


def _loss_sentence(answer: dict[str, Any]) -> str:
    r"""Return what an adopt lost; empty when that is nothing.

    >>> print(_loss_sentence({"lost_from": 3, "lost_to": 1048578, "exported_ts": 1_700_000_000_123}))
    <BLANKLINE>
    lost: what the other node wrote after seq 2 of 2023-11-14T22:13:20.123Z
    seqs 3 to 1048578 are not used again: it may have used all, few or none of them
    """
    if "lost_from" not in answer:
        return ""
    first, last, ts = answer["lost_from"], answer["lost_to"], answer["exported_ts"]
    after = f" after seq {first - 1} of {utc(ts)}" if ts else ""
    return (
        f"\nlost: what the other node wrote{after}\n"
        f"seqs {first} to {last} are not used again: it may have used all, few or none of them"
    )


def _row_sentence(row: dict[str, Any]) -> str:
    """Return what a row of the catalog says.

    >>> row = {"topic": "t", "node": "8f1c", "is_here": True, "state": "owned", "owner_epoch": 2}
    >>> _row_sentence(row | {"ceiling": 1000, "exported_to": 7})
    'topic "t" is owned by node 8f1c (this server) with owner epoch 2; exported to seq 7; ceiling 1000'
    >>> _row_sentence(row | {"state": "sealed", "is_here": False, "ceiling": 7, "exported_to": 7})
    'topic "t" is sealed by node 8f1c with owner epoch 2; exported to seq 7; any node may adopt it'
    """
    here = " (this server)" if row["is_here"] else ""
    said = f'topic "{row["topic"]}" is {row["state"]} by node {row["node"]}{here}'
    said += f" with owner epoch {row['owner_epoch']}; exported to seq {row['exported_to']}"
    if row["state"] == "sealed":
        return f"{said}; any node may adopt it"
    return f"{said}; ceiling {row['ceiling']}"
