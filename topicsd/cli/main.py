"""The command line `topicsd`: the list of commands, and the messages of commands that fail.

An error that a user can cause ends with a sentence on stderr and never with a traceback: a path that does not
exist, a file without read permission, a closed output pipe. A traceback means a bug of this program.
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

# A function that writes to stdout uses one of these names.
_PRINTING = frozenset(("print", "stdout"))

DESCRIPTION = (
    "An append-only event log and job queue: its server, and what looks after the directory with its data."
)


def run(arguments: list[str] | None) -> int:
    """Run the command line and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # JSON is UTF-8 whatever the terminal is set to; characters that cannot be encoded are escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    # A command reports what the engine finds, so the engine's log is dropped; a server sets up its own log.
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
        # The reader of the output (`head`, a pager) has closed the pipe, which is no error.
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
    """Exit with the usage and the nearest name when no command has the given name."""
    if given is None or given.startswith("-") or given in names:
        return
    parser.error(f"{given}: {unknown_name('command', given, names)}")


def unknown_sentence(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """Return the message for unknown arguments, without values of options: they may be secrets."""
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
    """Whether a write to stdout failed: the error names no path, and the failed function prints."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return error.filename is None and bool(_PRINTING & set(frames[-1][0].f_code.co_names))


def failed_function(error: OSError) -> str:
    """Return the function, file and line in which a call without a path failed."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}, {os.path.basename(frame.filename)}:{frame.lineno}"


def discard_output() -> None:
    """Close stdout, so that the interpreter reports no failed flush when it exits."""
    with contextlib.suppress(OSError):
        sys.stdout.close()
