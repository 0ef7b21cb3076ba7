"""`topicsd shards`: show the shards of a running server, and change their number."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from shared.contract.errors import NOT_READY
from shared.runtime.clock import Clock, SystemClock
from topicsd.cli.command import Command, CommandAction, write_json
from topicsd.cli.server.server_request import NoResponse, ServerRefused, add_server_arguments, ask_server
from topicsd.offline.command_error import EXIT_OK, CommandError
from topicsd.offline.table import plural, size, table

PATH: Final = "/v0/shards"
EXIT_INTERRUPTED: Final = 130
POLL_SECONDS: Final = 0.2
LINE_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 60.0
"""How long the server may be away, such as for a restart."""
BAR_CELLS: Final = 30

DESCRIPTION = """\
Show the shards of a running server: how many there are and are requested, the progress of a change, and the
topics and bytes of each.

  topicsd shards [--url URL] [--json]
  topicsd shards set N [--url URL] [--json]

`set` changes the number of shards while the server runs, and waits until that is done. The server continues
without the command, also after a restart. An API key needs the scope read; for set, read and admin.
"""

_DOING: Final = {
    "growing": "starting shards",
    "surveying": "counting topics",
    "moving": "moving topics",
    "retiring": "removing shards",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    parser.set_defaults(act=run_show)
    action = CommandAction("change the number of shards", _add_set_arguments, run_set, "topicsd shards set 4")
    setting = actions.add_parser("set", **action.parser_arguments())
    setting.set_defaults(act=action.run, parser=setting)
    action.add_arguments(setting)


def _add_set_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("count", metavar="N", type=int, help="the new number of shards")
    add_server_arguments(parser, is_action=True)


def run(args: argparse.Namespace) -> int:
    code: int = args.act(args)
    return code


def run_show(args: argparse.Namespace) -> int:
    answer = ask_server(args.url, "GET", PATH)
    if args.json:
        write_json(answer)
    else:
        print(*show_text(answer), sep="\n")
    return EXIT_OK


def show_text(answer: dict[str, Any]) -> list[str]:
    rows = [
        (
            str(one["shard"]),
            one["state"],
            f"{one['topics']:,}",
            f"{one['records']:,}",
            size(one["bytes"]),
        )
        for one in answer["shards"]
    ]
    headers = (">SHARD", "STATE", ">TOPICS", ">RECORDS", ">SIZE")
    return [state_sentence(answer), *table(headers, rows)]


def state_sentence(answer: dict[str, Any]) -> str:
    """Return how many shards there are, and how far a change is.

    >>> answer = {"count": 2, "target": 2, "state": "steady"}
    >>> state_sentence(answer)
    '2 shards'
    >>> answer |= {"target": 4, "state": "moving", "progress": 0.25, "topics_moved": 7, "last_error": ""}
    >>> state_sentence(answer | {"longest_pause_ms": 3.25})
    '2 shards, 4 requested: moving topics, 25 %; 7 topics moved, longest pause 3.2 ms'
    >>> state_sentence(answer | {"topics_moved": 0, "last_error": "shard 1 is starting"})
    '2 shards, 4 requested: moving topics, 25 %; pauses: shard 1 is starting'
    """
    shards = plural(answer["count"], "shard")
    if answer["state"] == "steady" and answer["count"] == answer["target"]:
        return shards
    doing = _DOING.get(answer["state"], "waiting")
    sentence = f"{shards}, {answer['target']} requested: {doing}, {answer['progress']:.0%}".replace("%", " %")
    if answer["topics_moved"]:
        moved = plural(answer["topics_moved"], "topic")
        sentence += f"; {moved} moved, longest pause {answer['longest_pause_ms']:.1f} ms"
    return sentence + (f"; pauses: {answer['last_error']}" if answer["last_error"] else "")


def run_set(args: argparse.Namespace) -> int:
    clock = SystemClock()
    started = clock.monotonic()
    before = ask_server(args.url, "GET", PATH)
    answer = ask_server(args.url, "POST", PATH, {"count": args.count})
    try:
        answer = _wait(args.url, args.count, answer, clock)
    except KeyboardInterrupt:
        raise CommandError(
            f"not waiting any more; the server continues to {plural(args.count, 'shard')}: run "
            "`topicsd shards` to see how far it is",
            EXIT_INTERRUPTED,
        ) from None
    if args.json:
        write_json(answer)
    elif is_reached(before, args.count):
        print(f"the server has {plural(args.count, 'shard')} already")
    else:
        moved = answer["topics_moved"] - before["topics_moved"]
        if moved < 0:  # The server was restarted, and counts from there.
            moved = answer["topics_moved"]
        seconds = clock.monotonic() - started
        print(
            f"the server has {plural(args.count, 'shard')}; {plural(moved, 'topic')} moved; {seconds:.1f} s"
        )
    return EXIT_OK


def is_reached(answer: dict[str, Any], count: int) -> bool:
    numbers = {answer["count"], answer["rule"], answer["target"]}
    return numbers == {count} and answer["state"] == "steady"


def _wait(url: str, count: int, answer: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """Wait until the server has so many shards, and show the progress."""
    progress = ReshardProgress(clock)
    answered, pause = clock.monotonic(), threading.Event()
    try:
        while not is_reached(answer, count):
            if answer["target"] != count:
                raise CommandError(f"another request has changed the number of shards to {answer['target']}")
            progress.show(answer["progress"], state_sentence(answer))
            pause.wait(POLL_SECONDS)
            try:
                answer = ask_server(url, "GET", PATH)
                answered = clock.monotonic()
            except (NoResponse, ServerRefused) as error:
                is_starting = not isinstance(error, ServerRefused) or error.code == NOT_READY
                if not is_starting or clock.monotonic() - answered > AWAY_SECONDS:
                    raise
                progress.show(answer["progress"], f"{error}; waiting for the server")
    finally:
        progress.clear()
    return answer


class ReshardProgress:
    """A bar that is replaced on a terminal, a line now and then elsewhere; it prints to stderr."""

    def __init__(self, clock: Clock, is_terminal: Callable[[], bool] = lambda: sys.stderr.isatty()) -> None:
        self._clock = clock
        self._is_terminal = is_terminal()
        self._printed: float | None = None

    def show(self, progress: float, sentence: str) -> None:
        now = self._clock.monotonic()
        if self._is_terminal:
            done = int(progress * BAR_CELLS)
            bar = "#" * done + "." * (BAR_CELLS - done)
            print(f"\r\x1b[K[{bar}] {sentence}", end="", file=sys.stderr, flush=True)
        elif self._printed is None or now - self._printed >= LINE_SECONDS:
            print(sentence, file=sys.stderr, flush=True)
        else:
            return
        self._printed = now

    def clear(self) -> None:
        if self._is_terminal and self._printed is not None:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


COMMAND: Final = Command(
    name="shards",
    summary="show the shards of a running server, or change their number",
    description=DESCRIPTION,
    example="  topicsd shards\n  topicsd shards set 4 --url http://127.0.0.1:4001",
    add_arguments=add_arguments,
    run=run,
    exit_codes="exit codes: 0 done, 2 refused or not reached, 130 interrupted: the server continues",
)
