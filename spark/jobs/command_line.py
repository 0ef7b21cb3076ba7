"""The command line of `python -m spark`: the purpose of each job, and its flags."""

from __future__ import annotations

import argparse
import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

DESCRIPTION = "Jobs over the topics of a data directory or of a server, on Spark."
POSITIONS = (
    "A position (--from, --to) is `earliest`, `latest`, a UTC time such as 2026-11-18T10:00, a time in\n"
    'milliseconds since 1970, or seqs as JSON: {"orders":23}.\n'
)
KEY = "The environment variable TOPICS_API_KEY holds the API key."
KEY_VARIABLE = "TOPICS_API_KEY"

EXPORT = (
    "Export topics to Parquet, in folders by topic and day. Each run continues where the manifest in the\n"
    "folder says that the last run ended. The next run completes or repeats an interrupted one."
)
STATS = "Show records, rates, sizes, tags, deletions and cursors of topics by hour, as a table or a chart."
REPLAY = (
    "Write an export back into topics, each record once and in order. Running the command again resumes an\n"
    "interrupted replay, and sends what was exported since."
)
COMPACT = (
    "Export the latest record of each tag to Parquet, and with --into or --prefix from there into topics.\n"
    "Records without a tag are left out. `replay` can read the folder."
)
ZIP = "Write the package as a zip for --py-files, for your own programs on a cluster."


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(prog="python -m spark", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    export = _command(commands, "export", EXPORT)
    _add_source(export)
    export.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="the folder to write: a directory, or any URI that Spark supports",
    )
    stats = _command(commands, "stats", STATS)
    _add_source(stats)
    stats.add_argument("--png", metavar="FILE", help="also draw a chart into this file")
    replay = _command(commands, "replay", REPLAY, epilog=KEY)
    replay.add_argument(
        "--in", required=True, dest="folder", metavar="FOLDER", help="the folder of an export"
    )
    replay.add_argument("--url", required=True, help="the server to write to")
    _add_target(replay)
    compact = _command(commands, "compact", COMPACT)
    _add_source(compact)
    compact.add_argument("--out", required=True, metavar="FOLDER", help="the folder to write")
    compact.add_argument("--to-url", metavar="URL", help="the server for --into or --prefix (default: --url)")
    _add_target(compact)
    zip_command = commands.add_parser("zip", help=ZIP, description=ZIP)
    zip_command.add_argument("file", metavar="FILE", help="the file to write; its name must end in .zip")
    args = parser.parse_args(arguments)
    _check(parser, args)
    return args


def source_options(args: Namespace) -> dict[str, str]:
    """Return the data source options for what a job reads."""
    options = dict(args.option)
    for option, value in (
        ("path", args.path),
        ("url", args.url),
        ("subscribe", args.topics),
        ("subscribePattern", args.pattern),
    ):
        if value is not None:
            options[option] = value
    key = api_key()
    return {**options, "apiKey": key} if args.url and key else options


def api_key() -> str:
    return os.environ.get(KEY_VARIABLE, "")


def _command(
    commands: argparse._SubParsersAction[ArgumentParser], name: str, text: str, epilog: str = POSITIONS + KEY
) -> ArgumentParser:
    first = " ".join(text.split()).partition(". ")[0].rstrip(".")
    parser = commands.add_parser(
        name,
        help=first,
        description=text,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
    )
    on_spark = parser.add_argument_group("Spark")
    on_spark.add_argument(
        "--master",
        # A process that spark-submit started gets the master from it.
        default="" if "PYSPARK_GATEWAY_PORT" in os.environ else "local[*]",
        help="the Spark master; a cluster receives the package (default: local[*], this machine)",
    )
    on_spark.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="a Spark setting, such as spark.driver.memory=4g",
    )
    on_spark.add_argument("--verbose", action="store_true", help="show Spark's log, and tracebacks of errors")
    return parser


def _add_source(parser: ArgumentParser) -> None:
    source = parser.add_argument_group("source")
    location = source.add_mutually_exclusive_group(required=True)
    location.add_argument("--path", metavar="DIR", help="a data directory; a server may be running on it")
    location.add_argument("--url", help="the server to read from")
    names = source.add_mutually_exclusive_group(required=True)
    names.add_argument("--topics", metavar="NAMES", help="topics, separated by commas")
    names.add_argument("--pattern", metavar="REGEX", help="the topics whose whole name matches")
    source.add_argument(
        "--from",
        default="earliest",
        dest="begin",
        metavar="POSITION",
        help="where to begin (default: earliest)",
    )
    source.add_argument(
        "--to", default="latest", dest="end", metavar="POSITION", help="where to end (default: latest)"
    )
    source.add_argument(
        "--option",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="an option of the data source, such as failOnDataLoss=false or coldDir=/mnt/cold",
    )


def _add_target(parser: ArgumentParser) -> None:
    target = parser.add_argument_group("target")
    names = target.add_mutually_exclusive_group()
    names.add_argument("--into", default="", metavar="TOPIC", help="write all records to this topic")
    names.add_argument(
        "--prefix",
        default=None,
        metavar="TEXT",
        help="write each record to the topic of its own name with this prefix",
    )
    target.add_argument(
        "--name",
        default="replay",
        help="the name of the replay; each name is sent once (default: %(default)s)",
    )


def _check(parser: ArgumentParser, args: Namespace) -> None:
    """Check the combinations of flags."""
    if args.command == "compact":
        writes = args.into or args.prefix is not None
        if writes and not (args.to_url or args.url):
            parser.error("compact: --into and --prefix need a server; set --to-url")
        if args.to_url and not writes:
            parser.error("compact: --to-url needs --into or --prefix")
    if args.command == "zip" and not args.file.endswith(".zip"):
        parser.error("zip: FILE must end in .zip, otherwise Spark does not add it to the Python path")


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    return key, value
