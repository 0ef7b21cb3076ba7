"""The start parameters of a worker, which the supervisor passes in an environment variable."""

from __future__ import annotations

import msgspec

from shared.settings.settings import Settings

SPEC_VARIABLE = "TOPICSD_WORKER"


class Spec(msgspec.Struct, frozen=True):
    shard: int
    """The shard of a worker, or the owner number of a broker."""
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
    broker: int | None = None
    """The number of a broker, whose shard is the owner number; None for a worker."""
    keys_version: int = 0
    """The version of the keys in the settings (`KEYS_VERSION` of the board)."""
    address: str = ""
    """Where other nodes reach this one; empty on a node without brokers."""

    @property
    def process_name(self) -> str:
        return f"worker-{self.shard:02d}" if self.broker is None else f"broker-{self.broker}"
