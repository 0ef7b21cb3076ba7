"""Positions past the head of a topic.

P1  A position past the head that carries the epoch of the topic is refused. The refusal carries the head.
P2  A position past the head without an epoch belongs to an earlier epoch of the topic (`recreated`).
"""

from __future__ import annotations

from typing import Final

from shared.contract.errors import POSITION_PAST_HEAD, Refusal

OTHER_EPOCH: Final = 0
"""The epoch of no topic: a position with this epoch belongs to another epoch (P2)."""


def position_past_head(topic: str, seq: int, head: int, epoch: int) -> Refusal:
    message = (
        f'position {seq} is past the head of topic "{topic}", which is {head}: '
        f"continue from the next_from_seq of the last answer, at most {head}"
    )
    return Refusal(POSITION_PAST_HEAD, message, {"topic": topic, "head_seq": head, "epoch": epoch})


def followed_epoch(seq: int, client_epoch: int | None, head: int, epoch: int) -> int:
    """Return the epoch to follow a topic with; `client_epoch` is the one that the client sent, if any."""
    if client_epoch is not None:
        return client_epoch
    return OTHER_EPOCH if seq > head else epoch
