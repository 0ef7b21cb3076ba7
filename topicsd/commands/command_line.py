"""The command line `topicsd`: which commands there are, and what a person sees when one cannot go on.

What a person can cause ends in a sentence on stderr and never in a traceback: a path that is none, a file
that may not be read, a reader of the output that has gone. A traceback is left for our own mistakes.

Must not know: what a command does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from importlib.metadata import PackageNotFoundError, version

from topicsd.commands import inspect_dir, verify_dir
from topicsd.commands.command import FINE, NOT_DONE, CommandError
from topicsd.disk.layout import LAYOUT_FORMAT
from topicsd.wal import file_header

COMMANDS = (inspect_dir.COMMAND, verify_dir.COMMAND)

DESCRIPTION = "An append-only event log and job queue. The commands look at the directory with its data."
EXIT_CODES = "exit code: 0 all is well, 1 something is wrong with the data, 2 it could not be looked at"


def run(arguments: list[str] | None) -> int:
    """Carry out the command line; gives the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # JSON is UTF-8 whatever the terminal is set to, and text that has no encoding gets an escape.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    parser = make_parser()
    given = parser.parse_args(arguments)
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
        if error.filename is None:
            discard_output()
        return complain(os_error_sentence(error), NOT_DONE)
    return code


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="topicsd", description=DESCRIPTION, epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=version_line())
    parser.set_defaults(run=None)
    rows = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        row = rows.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"example:\n{command.example}\n\n{EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(row)
        row.set_defaults(run=command.run)
    return parser


def version_line() -> str:
    try:
        number = version("topicsd")
    except PackageNotFoundError:
        number = "(not installed)"
    return f"topicsd {number}, data directory format {LAYOUT_FORMAT}, WAL format {file_header.VERSION}"


def complain(sentence: str, exit_code: int) -> int:
    print(f"topicsd: {sentence}", file=sys.stderr)
    return exit_code


def os_error_sentence(error: OSError) -> str:
    """An error without a path is of the only thing that is written, the output.

    >>> os_error_sentence(PermissionError(13, "Permission denied", "topics-data/LAYOUT.json"))
    'topics-data/LAYOUT.json: Permission denied'
    """
    told = error.strerror or str(error)
    return (
        f"the output cannot be written: {told}"
        if error.filename is None
        else f"{os.fsdecode(error.filename)}: {told}"
    )


def discard_output() -> None:
    """Nobody takes the output any more; without this the interpreter would complain about it at its end."""
    with contextlib.suppress(OSError):
        sys.stdout.close()
