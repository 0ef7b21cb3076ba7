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
from topicsd.cli import config_show, doctor, inspect_command, reshard, serve, verify
from topicsd.cli.backup import command as backup
from topicsd.cli.compactor import command as compactor
from topicsd.cli.server import cluster, shards, topic
from topicsd.cli.store import command as store
from topicsd.disk.access import os_error_sentence
from topicsd.disk.layout import LAYOUT_FORMAT
from topicsd.log import file_header
from topicsd.offline.command_error import EXIT_ERROR, EXIT_OK, CommandError

COMMANDS = (
    serve.COMMAND,
    config_show.COMMAND,
    inspect_command.COMMAND,
    verify.COMMAND,
    doctor.COMMAND,
    reshard.COMMAND,
    shards.COMMAND,
    cluster.COMMAND,
    store.COMMAND,
    compactor.COMMAND,
    topic.COMMAND,
    backup.COMMAND,
)

# A function that writes to stdout uses one of these names.
_PRINT_NAMES = frozenset(("print", "stdout"))

DESCRIPTION = "An append-only event log and job queue: the server, and tools that check and repair its data."


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
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.error(unknown_sentence(args.parser, unknown))
    if args.run is None:
        parser.print_help(sys.stderr)
        return EXIT_ERROR
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except CommandError as error:
        return print_error(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of the output (`head`, a pager) has closed the pipe, which is no error.
        discard_output()
        return EXIT_OK
    except OSError as error:
        if is_output_error(error):
            discard_output()
            return print_error(f"cannot write the output: {os_error_sentence(error)}", EXIT_ERROR)
        where = "" if error.filename is not None else f" (in {failed_function(error)})"
        return print_error(f"{os_error_sentence(error)}{where}", EXIT_ERROR)
    return code


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="topicsd", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=version_line())
    parser.set_defaults(run=None, parser=parser)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=f"example:\n{command.example}\n\n{command.exit_codes}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(run=command.run, parser=subparser)
        command.add_arguments(subparser)
    version = subparsers.add_parser("version", help="show the version, as --version does")
    version.set_defaults(run=show_version, parser=version)
    help_parser = subparsers.add_parser("help", help="show this help, or that of a command")
    help_parser.add_argument("command", nargs="?", metavar="COMMAND")
    help_parser.set_defaults(run=partial(show_help, parser, subparsers.choices), parser=help_parser)
    return parser


def show_version(args: argparse.Namespace) -> int:
    print(version_line())
    return EXIT_OK


def show_help(
    parser: argparse.ArgumentParser,
    subparsers: Mapping[str, argparse.ArgumentParser],
    args: argparse.Namespace,
) -> int:
    refuse_command(parser, subparsers, args.command)
    (parser if args.command is None else subparsers[args.command]).print_help()
    return EXIT_OK


def refuse_command(parser: argparse.ArgumentParser, names: Iterable[str], given: str | None) -> None:
    """Exit with the usage and the nearest name when no command has the given name."""
    if given is None or given.startswith("-") or given in names:
        return
    parser.error(f"{given}: {unknown_name('command', given, names)}")


def unknown_sentence(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    """Return the message for unknown arguments, without values of options: they may be secrets."""
    options = [one.partition("=")[0] for one in unknown if one.startswith("-")]
    if not options:
        return f"unexpected argument: {' '.join(unknown)}"
    known = [name for action in parser._actions for name in action.option_strings]
    nearest = nearest_name(options[0], known, "--")
    guess = f", did you mean {nearest}?" if nearest else ""
    return f"unknown option {' '.join(options)}{guess}"


def version_line() -> str:
    formats = f"data directory format {LAYOUT_FORMAT}, WAL format {file_header.VERSION}"
    return f"topicsd {program_version()}, {formats}"


def print_error(sentence: str, exit_code: int) -> int:
    print(f"topicsd: {sentence}", file=sys.stderr)
    return exit_code


def is_output_error(error: OSError) -> bool:
    """Whether a write to stdout failed: the error names no path, and the failed function prints."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return error.filename is None and bool(_PRINT_NAMES & set(frames[-1][0].f_code.co_names))


def failed_function(error: OSError) -> str:
    """Return the function, file and line in which a call without a path failed."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}, {os.path.basename(frame.filename)}:{frame.lineno}"


def discard_output() -> None:
    """Close stdout, so that the interpreter reports no failed flush when it exits."""
    with contextlib.suppress(OSError):
        sys.stdout.close()
