"""`topicsd store`: the list of its actions."""

from __future__ import annotations

from functools import partial
from typing import Final

from topicsd.cli.command import Command, CommandAction, add_actions, run_action
from topicsd.cli.store import vacuum

ACTIONS: Final = {
    "vacuum": CommandAction(
        vacuum.SUMMARY,
        vacuum.add_arguments,
        vacuum.run,
        "topicsd store vacuum ./topics-data\n  topicsd store vacuum ./topics-data --sole-directory --apply",
        vacuum.DESCRIPTION,
    ),
}

COMMAND: Final = Command(
    name="store",
    summary="look after the object store of a data directory",
    description="Look after the object store of a data directory.",
    example="  topicsd store vacuum ./topics-data",
    add_arguments=partial(add_actions, actions=ACTIONS),
    run=run_action,
    exit_codes="exit codes: 0 done, 1 problems in the data, 2 refused, or the store did not answer",
)
