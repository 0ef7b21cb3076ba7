"""How far a stream is, as a named cursor of each topic, where everybody sees it who looks at lags.

It is for looking at, and for topics that protect their cursors: a query goes on by its checkpoint alone. So
what the server says no to is a warning in the log of the driver, and the stream goes on.
"""

from __future__ import annotations

import logging

from spark.errors import SourceError
from spark.source.read_options import ReadOptions
from spark.source.stream_offset import Places
from spark.view.server_client import ServerClient, in_path

PATIENCE_S = 2.0

logger = logging.getLogger("topicsd.spark")


def publish(options: ReadOptions, places: Places) -> None:
    name = options.progress_cursor
    with ServerClient(options.url, options.api_key, PATIENCE_S) as client:
        for topic, place in places.items():
            # A cursor is the last seq that is done with.
            body = {"after_seq": place.offset - 1, "epoch": place.epoch}
            try:
                client.ask("PUT", f"topics/{in_path(topic)}/cursors/{in_path(name)}", body)
            except SourceError as refusal:
                logger.warning("how far the stream is in topic %s was not published: %s", topic, refusal)
