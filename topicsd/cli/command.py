"""The description of a command and of its actions, from which parser and help are built, and JSON output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from topicsd.offline.command_error import EXIT_OK

EXIT_CODES: Final = "exit codes: 0 no problems, 1 problems in the data, 2 the data could not be read"


class Command(NamedTuple):
    """One command of the command line."""

    name: str
    summary: str
    """One line for the list of commands."""
    description: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Run the command: print to stdout and return the exit code, or raise CommandError."""
    exit_codes: str = EXIT_CODES


class CommandAction(NamedTuple):
    """One action of a command with several, such as `create` of `topicsd backup`."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    example: str
    description: str = ""
    """Kept as it is laid out; empty: the summary as a sentence."""

    def parser_arguments(self) -> dict[str, Any]:
        """Return the arguments of `add_parser` for the help of the action."""
        return {
            "help": self.summary,
            "description": self.description or f"{self.summary[0].upper()}{self.summary[1:]}.",
            "epilog": f"example:\n  {self.example}",
            "formatter_class": argparse.RawDescriptionHelpFormatter,
        }


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, CommandAction]) -> None:
    """Add the actions of a command; alone, the command shows its help."""
    subparsers = parser.add_subparsers(title="actions", metavar="ACTION")
    parser.set_defaults(act=None, show_help=parser.print_help)
    for name, action in actions.items():
        added = subparsers.add_parser(name, **action.parser_arguments())
        added.set_defaults(act=action.run, parser=added)
        action.add_arguments(added)


def run_action(args: argparse.Namespace) -> int:
    """Run the chosen action, or show the help of the command."""
    if args.act is None:
        args.show_help()
        return EXIT_OK
    code: int = args.act(args)
    return code


def write_json(document: object) -> None:
    """Print one JSON document on stdout, indented for human readers."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
