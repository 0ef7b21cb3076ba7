"""The command line of `python -m spark`: the purpose of each job, and its flags."""

from __future__ import annotations

import argparse
import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

DESCRIPTION = "Jobs over the topics of a data directory or of a server, on Spark."
WHERE = (
    "A place (--from, --to) is `earliest`, `latest`, a time in UTC as 2026-11-18T10:00 or in milliseconds\n"
    'since 1970, or JSON of seqs: {"orders":23}. An API key comes from the environment, TOPICS_API_KEY.'
)
KEY_VARIABLE = "TOPICS_API_KEY"

EXPORT = (
    "Topics to Parquet, in folders by topic and day. Each run goes on where the one before it ended, as the\n"
    "manifest in the folder says; one that was cut off is ended or begun again by the next."
)
STATS = "Records, rates, sizes, tags, deletions and cursors of topics by hour, as a table and as a picture."
REPLAY = (
    "What an export has, back into topics, each record once and in order. One that was cut off goes on, and\n"
    "what came to the export since is sent by the next."
)
COMPACT = (
    "The latest record of each tag to Parquet, and with --into or --prefix from there into topics.\n"
    "Records without a tag are left out. The folder is one that replay can read."
)
ZIP = "The package as a file for --py-files, for programs of your own on a cluster."


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(prog="python -m spark", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    export = _command(commands, "export", EXPORT)
    _add_source(export)
    export.add_argument(
        "--out", required=True, metavar="FOLDER", help="a directory, or any URI that Spark knows"
    )
    stats = _command(commands, "stats", STATS)
    _add_source(stats)
    stats.add_argument("--png", metavar="FILE", help="draw them too")
    replay = _command(commands, "replay", REPLAY)
    replay.add_argument("--in", required=True, dest="folder", metavar="FOLDER", help="of an export")
    replay.add_argument("--url", required=True, help="the server")
    _add_target(replay)
    compact = _command(commands, "compact", COMPACT)
    _add_source(compact)
    compact.add_argument("--out", required=True, metavar="FOLDER", help="where the records go")
    compact.add_argument("--to-url", metavar="URL", help="the server for --into or --prefix (default: --url)")
    _add_target(compact)
    packed = commands.add_parser("zip", help=ZIP, description=ZIP)
    packed.add_argument("file", metavar="FILE", help="its name has to end with .zip")
    given = parser.parse_args(arguments)
    _check(parser, given)
    return given


def source_options(given: Namespace) -> dict[str, str]:
    """Return the data source options for what a job reads."""
    options = dict(given.option)
    for option, value in (
        ("path", given.path),
        ("url", given.url),
        ("subscribe", given.topics),
        ("subscribePattern", given.pattern),
    ):
        if value is not None:
            options[option] = value
    key = api_key()
    return {**options, "apiKey": key} if given.url and key else options


def api_key() -> str:
    return os.environ.get(KEY_VARIABLE, "")


def _command(commands: argparse._SubParsersAction[ArgumentParser], name: str, text: str) -> ArgumentParser:
    first = " ".join(text.split()).partition(". ")[0].rstrip(".")
    parser = commands.add_parser(
        name,
        help=first,
        description=text,
        epilog=WHERE,
        formatter_class=RawDescriptionHelpFormatter,
    )
    on_spark = parser.add_argument_group("Spark")
    on_spark.add_argument(
        "--master",
        # A process that spark-submit started gets the master from it.
        default="" if "PYSPARK_GATEWAY_PORT" in os.environ else "local[*]",
        help="where it runs: a cluster, to which the package goes along (default: here, local[*])",
    )
    on_spark.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="a setting of Spark, as spark.driver.memory=4g",
    )
    on_spark.add_argument("--verbose", action="store_true", help="what Spark logs, and traces of errors")
    return parser


def _add_source(parser: ArgumentParser) -> None:
    source = parser.add_argument_group("what is read")
    place = source.add_mutually_exclusive_group(required=True)
    place.add_argument("--path", metavar="DIR", help="a data directory; a server may be running on it")
    place.add_argument("--url", help="a server")
    names = source.add_mutually_exclusive_group(required=True)
    names.add_argument("--topics", metavar="NAMES", help="with commas between them")
    names.add_argument("--pattern", metavar="REGEX", help="all whose whole name matches")
    source.add_argument(
        "--from", default="earliest", dest="begin", metavar="PLACE", help="(default: earliest)"
    )
    source.add_argument("--to", default="latest", dest="end", metavar="PLACE", help="(default: latest)")
    source.add_argument(
        "--option",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="of the data source, as failOnDataLoss=false or coldDir=/mnt/cold",
    )


def _add_target(parser: ArgumentParser) -> None:
    target = parser.add_argument_group("where it is written")
    names = target.add_mutually_exclusive_group()
    names.add_argument("--into", default="", metavar="TOPIC", help="all into this topic")
    names.add_argument(
        "--prefix", default=None, metavar="TEXT", help="each into the topic of its name, with this in front"
    )
    target.add_argument(
        "--name", default="replay", help="of the replay: each name is sent once (default: %(default)s)"
    )


def _check(parser: ArgumentParser, given: Namespace) -> None:
    """Check the combinations of flags."""
    if given.command == "compact":
        writes = given.into or given.prefix is not None
        if writes and not (given.to_url or given.url):
            parser.error("compact: --into and --prefix need a server: --to-url")
        if given.to_url and not writes:
            parser.error("compact: --to-url needs --into or --prefix")
    if given.command == "zip" and not given.file.endswith(".zip"):
        parser.error("zip: the name has to end with .zip, else Spark does not put it on the path of Python")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not like KEY=VALUE")
    return key, value
