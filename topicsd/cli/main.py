"""The command line `topicsd`: which commands there are, and what a person sees when one cannot go on.

What a person can cause ends in a sentence on stderr and never in a traceback: a path that is none, a file
that may not be read, a reader of the output that has gone. A traceback is left for our own mistakes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from functools import partial

from shared.runtime.program_version import program_version
from shared.text.nearest_name import nearest_name
from shared.text.unknown_name import unknown_name
from topicsd.cli import config_show, doctor, inspect_command, serve, verify
from topicsd.disk.access import os_error_sentence
from topicsd.disk.layout import LAYOUT_FORMAT
from topicsd.log import file_header
from topicsd.offline.command_error import FINE, NOT_DONE, CommandError

COMMANDS = (serve.COMMAND, config_show.COMMAND, inspect_command.COMMAND, verify.COMMAND, doctor.COMMAND)

# The names by which a function writes to the output.
_PRINTING = frozenset(("print", "stdout"))

DESCRIPTION = (
    "An append-only event log and job queue: its server, and what looks after the directory with its data."
)


def run(arguments: list[str] | None) -> int:
    """Carry out the command line; gives the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # JSON is UTF-8 whatever the terminal is set to, and text that has no encoding gets an escape.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # What the engine has to say while a command looks is said by the command; a server sets up its own log.
    if not (log := logging.getLogger("topicsd")).handlers:
        log.addHandler(logging.NullHandler())
    parser = make_parser()
    words = sys.argv[1:] if arguments is None else arguments
    refuse_command(
        parser, [*(command.name for command in COMMANDS), "help", "version"], next(iter(words), None)
    )
    given, unknown = parser.parse_known_args(words)
    if unknown:
        given.parser.error(unknown_sentence(given.parser, unknown))
    if given.run is None:
        parser.print_help(sys.stderr)
        return NOT_DONE
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except CommandError as error:
        return complain(str(error), error.exit_code)
    except BrokenPipeError:
        # Whoever read the output (`head`, a pager) has seen enough.
        discard_output()
        return FINE
    except OSError as error:
        if is_of_output(error):
            discard_output()
            return complain(f"the output cannot be written: {os_error_sentence(error)}", NOT_DONE)
        where = "" if error.filename is not None else f" (in {failed_function(error)})"
        return complain(f"{os_error_sentence(error)}{where}", NOT_DONE)
    return code


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="topicsd", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=version_line())
    parser.set_defaults(run=None, parser=parser)
    rows = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        row = rows.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"example:\n{command.example}\n\n{command.exit_codes}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        row.set_defaults(run=command.run, parser=row)
        command.add_arguments(row)
    version = rows.add_parser("version", help="show the version, as --version does")
    version.set_defaults(run=show_version, parser=version)
    help_row = rows.add_parser("help", help="show this help, or that of a command")
    help_row.add_argument("command", nargs="?", metavar="COMMAND")
    help_row.set_defaults(run=partial(show_help, parser, rows.choices), parser=help_row)
    return parser


def show_version(given: argparse.Namespace) -> int:
    print(version_line())
    return FINE


def show_help(
    parser: argparse.ArgumentParser, rows: Mapping[str, argparse.ArgumentParser], given: argparse.Namespace
) -> int:
    refuse_command(parser, rows, given.command)
    (parser if given.command is None else rows[given.command]).print_help()
    return FINE


def refuse_command(parser: argparse.ArgumentParser, names: Iterable[str], given: str | None) -> None:
    """End with the usage and the nearest name when there is no such command."""
    if given is None or given.startswith("-") or given in names:
        return
    parser.error(f"{given}: {unknown_name('command', given, names)}")


def unknown_sentence(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """What was not understood. With an option that is none, its value is left out: it may be a secret."""
    wrong = [one.partition("=")[0] for one in unknown if one.startswith("-")]
    if not wrong:
        return f"unexpected argument: {' '.join(unknown)}"
    known = [name for action in parser._actions for name in action.option_strings]
    nearest = nearest_name(wrong[0], known, "--")
    guess = f", did you mean {nearest}?" if nearest else ""
    return f"unknown option {' '.join(wrong)}{guess}"


def version_line() -> str:
    formats = f"data directory format {LAYOUT_FORMAT}, WAL format {file_header.VERSION}"
    return f"topicsd {program_version()}, {formats}"


def complain(sentence: str, exit_code: int) -> int:
    print(f"topicsd: {sentence}", file=sys.stderr)
    return exit_code


def is_of_output(error: OSError) -> bool:
    """Whether a write to stdout failed: the error names no path, and the function that failed prints."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return error.filename is None and bool(_PRINTING & set(frames[-1][0].f_code.co_names))


def failed_function(error: OSError) -> str:
    """Where a call failed that names no path."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}, {os.path.basename(frame.filename)}:{frame.lineno}"


def discard_output() -> None:
    """Nobody takes the output any more; without this the interpreter would complain about it at its end."""
    with contextlib.suppress(OSError):
        sys.stdout.close()
