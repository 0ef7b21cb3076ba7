"""Checks of a job before Spark is started, which takes seconds.

They also run before anything is recorded: a replay notes its target in its book.
"""

from __future__ import annotations

import os
from argparse import Namespace

from shared.contract.names import TOPIC_NAME_RULE, is_topic_name
from spark.errors import SourceError
from spark.jobs.command_line import source_options
from spark.jobs.job_source import position_options
from spark.source.read_options import parse_options, server_url
from spark.view.directory_view import open_directory
from spark.view.server_client import ServerClient, ServerRefusal

# Longer than a restart of a server takes; the tasks of a job retry for longer.
TIMEOUT_S = 10.0


def check(args: Namespace) -> None:
    """Raise SourceError if the job cannot succeed."""
    if args.command != "replay":
        _check_source(args)
    for url in {args.url, getattr(args, "to_url", None)} - {None}:
        _check_answers(server_url(url))
    if args.command in ("replay", "compact"):
        _check_names(args)
    chart = getattr(args, "png", None)
    if chart and not os.access(os.path.dirname(os.path.abspath(chart)), os.W_OK):
        raise SourceError(f"--png: cannot write {chart}; its folder must exist and be writable")


def _check_source(args: Namespace) -> None:
    options = source_options(args)
    read = parse_options(options, is_stream=True)
    for flag, position in (("--from", args.begin), ("--to", args.end)):
        try:
            parse_options({**options, **position_options(position)}, is_stream=True)
        except SourceError as error:
            raise SourceError(f"{flag}: {error}") from None
    if read.path:
        open_directory(read.path, read.store_url)


def _check_names(args: Namespace) -> None:
    for flag, text, suffix in (("--into", args.into, ""), ("--prefix", args.prefix, "x")):
        if text and not is_topic_name(text + suffix):
            raise SourceError(f"{flag}: must match {TOPIC_NAME_RULE}, got {text!r}")


def _check_answers(url: str) -> None:
    with ServerClient(url, "", TIMEOUT_S) as client:
        try:
            client.ask("GET", "ready")
        except ServerRefusal:
            return  # The server responds; the job itself reports its refusals better.
