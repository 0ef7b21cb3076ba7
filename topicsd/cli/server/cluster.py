"""`topicsd cluster status`: show the nodes with brokers that share a store and a catalog."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from topicsd.cli.command import Command, CommandAction, add_actions, run_action, write_json
from topicsd.cli.server.server_request import add_server_arguments, ask_server
from topicsd.offline.command_error import EXIT_OK
from topicsd.offline.table import plural, size, table

PATH: Final = "/v0/cluster"

DESCRIPTION = """\
Show the nodes with brokers, as one of them has them from the catalog: address, weight and share of the homes
of shared topics, roles, the age of the last heartbeat, and what the first broker has taken and given since
its start.

  topicsd cluster status [--url URL] [--json]

An API key needs the scope read.
"""


def run_status(args: argparse.Namespace) -> int:
    answer = ask_server(args.url, "GET", PATH)
    if args.json:
        write_json(answer)
    else:
        print(*status_text(answer), sep="\n")
    return EXIT_OK


def status_text(answer: dict[str, Any]) -> list[str]:
    """Return the nodes as lines; a number that a node of another release does not report is 0."""
    headers = (
        "NODE",
        "ADDRESS",
        ">WEIGHT",
        ">SHARE",
        ">HOMES",
        "ROLES",
        ">BEAT",
        ">RECORDS IN",
        ">IN",
        ">RECORDS OUT",
        ">OUT",
        ">QUEUE",
        ">COST",
    )
    nodes = answer["nodes"]
    counted = plural(answer["topics_counted"], "topic")
    return [
        f"{plural(len(nodes), 'node')}, homes of {counted}",
        *table(headers, [_row(one) for one in nodes]),
    ]


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    report = node["report"]
    return (
        node["node"],
        node["address"],
        f"{node['weight']:g}",
        f"{node['share']:.0%}".replace("%", " %"),
        f"{node['homes']:,}",
        ",".join(node["roles"]),
        f"{node['age_ms'] / 1000:.1f} s",
        f"{report.get('records_in', 0):,}",
        size(report.get("bytes_in", 0)),
        f"{report.get('records_out', 0):,}",
        size(report.get("bytes_out", 0)),
        f"{report.get('queue_seconds', 0):g} s",
        f"${report.get('requests_dollars', 0):.4f}",
    )


ACTIONS: Final = {
    "status": CommandAction(
        "show the nodes",
        add_server_arguments,
        run_status,
        "topicsd cluster status --url http://127.0.0.1:4001",
    )
}

COMMAND: Final = Command(
    name="cluster",
    summary="show the nodes with brokers that share a store and a catalog",
    description=DESCRIPTION,
    example="  topicsd cluster status\n  topicsd cluster status --url http://127.0.0.1:4001 --json",
    add_arguments=partial(add_actions, actions=ACTIONS),
    run=run_action,
    exit_codes="exit codes: 0 shown, 2 refused or not reached; the message is on stderr",
)
