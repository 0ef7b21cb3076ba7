"""Requests to a node of a cluster, and its answers, whatever the node is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from tests.harness.books.ledger_entries import TopicContents

Outcome = Literal["nothing done", "unknown"]


class Append(NamedTuple):
    payloads: list[bytes]
    tag: str | None = None
    key: str | None = None
    producer: tuple[str, int] | None = None
    """The id of a producer and its number for this write."""
    may_create: bool = False


class Delete(NamedTuple):
    """Delete the records with these seqs, or with a tag."""

    seqs: list[int]
    tag: str | None = None


class ReadAll(NamedTuple):
    """Read a topic from its start until it is caught up."""


class MoveCursor(NamedTuple):
    cursor: str
    seq: int


class ReadCursor(NamedTuple):
    cursor: str


class ClaimJobs(NamedTuple):
    worker: str
    limit: int


class EndJobs(NamedTuple):
    """Ack jobs, or return them."""

    worker: str
    seqs: list[int]
    leases: list[int]
    is_done: bool


class DropTopic(NamedTuple):
    """Delete a topic."""


class Seal(NamedTuple):
    pass


class Adopt(NamedTuple):
    accept_loss: bool


Request = Append | Delete | DropTopic | ReadAll | MoveCursor | ReadCursor | ClaimJobs | EndJobs | Seal | Adopt


class Appended(NamedTuple):
    first_seq: int
    last_seq: int


class Done(NamedTuple):
    """A request without a result is done."""


class CursorAt(NamedTuple):
    seq: int | None


class Leased(NamedTuple):
    seq: int
    lease: int


class Claimed(NamedTuple):
    jobs: list[Leased]


class JobsEnded(NamedTuple):
    seqs: list[int]


class Refused(NamedTuple):
    """A request was not answered as asked."""

    code: str
    outcome: Outcome
    owner: str = ""
    """The node to ask instead, if the answer names one."""


Answer = Appended | Done | CursorAt | Claimed | JobsEnded | TopicContents | Refused
Reply = Callable[[Answer], object]

IN_DOUBT = Refused("in_doubt", "unknown")


class ClusterNode(Protocol):
    """One machine with one server. A server that does not run gives no answer."""

    name: str
    is_lost: bool
    supported: frozenset[type[Request]]

    @property
    def is_up(self) -> bool: ...

    def request(self, topic: str, request: Request, reply: Reply) -> None: ...

    def is_exported(self, topic: str) -> bool:
        """Whether this node serves the topic and has nothing to export."""
        ...
