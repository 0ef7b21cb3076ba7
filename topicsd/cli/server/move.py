"""`topicsd topic move`: move a topic to another shard of the running server."""

from __future__ import annotations

import argparse

from topicsd.cli.command import write_json
from topicsd.cli.server.server_request import add_server_arguments, ask_topic
from topicsd.offline.command_error import EXIT_OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("--shard", metavar="K", type=int, required=True, help="the shard that gets it")
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    moved = ask_topic(args.url, "POST", args.name, "/move", {"shard": args.shard})
    if args.json:
        write_json(moved)
    elif moved["moved"]:
        print(
            f'topic "{args.name}" is on shard {moved["shard"]} now; '
            f"its writes waited for {moved['frozen_ms']:.1f} ms"
        )
    else:
        print(f'topic "{args.name}" was on shard {moved["shard"]} already')
    return EXIT_OK
