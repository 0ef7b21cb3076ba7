"""The progress of a stream, published as a cursor of each topic so that lag is visible.

The cursor is for monitoring, and for topics that protect their cursors; a query resumes from its checkpoint
alone. A refusal by the server is therefore logged as a warning by the driver, and the stream continues.
"""

from __future__ import annotations

import logging

from spark.errors import SourceError
from spark.source.read_options import ReadOptions
from spark.source.stream_offset import TopicOffsets
from spark.view.server_client import ServerClient, in_path

TIMEOUT_S = 2.0

logger = logging.getLogger("topicsd.spark")


def publish(options: ReadOptions, offsets: TopicOffsets) -> None:
    name = options.progress_cursor
    with ServerClient(options.url, options.api_key, TIMEOUT_S) as client:
        for topic, position in offsets.items():
            # A cursor is the last seq that was processed.
            body = {"after_seq": position.offset - 1, "epoch": position.epoch}
            try:
                client.ask("PUT", f"topics/{in_path(topic)}/cursors/{in_path(name)}", body)
            except SourceError as refusal:
                logger.warning(
                    "progress cursor: publish failed: %s  topic=%s cursor=%s", refusal, topic, name
                )
