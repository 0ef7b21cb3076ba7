"""`topicsd topic`: the list of its actions."""

from __future__ import annotations

from functools import partial
from typing import Final

from topicsd.cli.command import Command, CommandAction, add_actions, run_action
from topicsd.cli.server import move, ownership

ACTIONS: Final = {
    "move": CommandAction(
        "move a topic to another shard of the server",
        move.add_arguments,
        move.run,
        "topicsd topic move orders --shard 2",
    ),
    "seal": CommandAction(
        "end the ownership of a topic here, so that any node may adopt it",
        ownership.add_seal_arguments,
        ownership.run_seal,
        "topicsd topic seal orders",
    ),
    "adopt": CommandAction(
        "make this server the owner of a topic",
        ownership.add_adopt_arguments,
        ownership.run_adopt,
        "topicsd topic adopt orders --url http://127.0.0.1:4001\n"
        "  topicsd topic adopt orders --url http://127.0.0.1:4001 --accept-loss",
    ),
    "where": CommandAction(
        "show which node owns a topic",
        ownership.add_arguments,
        ownership.run_where,
        "topicsd topic where orders",
    ),
}

COMMAND: Final = Command(
    name="topic",
    summary="do something with one topic of a running server",
    description="Do something with one topic of a running server. An API key needs the scope admin; "
    "for where, the scope read is enough.",
    example="  topicsd topic move orders --shard 2\n"
    "  topicsd topic adopt orders --accept-loss --url http://127.0.0.1:4001",
    add_arguments=partial(add_actions, actions=ACTIONS),
    run=run_action,
    exit_codes="exit codes: 0 done, 2 refused, or the server was not reached; the message is on stderr",
)
