"""The start parameters of a worker, which the supervisor passes in an environment variable."""

from __future__ import annotations

import msgspec

from shared.settings.settings import Settings

SPEC_VARIABLE = "TOPICSD_WORKER"


class Spec(msgspec.Struct, frozen=True):
    shard: int
    shards: int
    data_dir: str
    instance: str
    namespace: str
    """The prefix of every machine-wide name that the processes of this server use."""
    channel_fd: int
    board_fd: int
    settings: Settings
    placement_file: str = ""
    """Empty for a server without a directory."""
