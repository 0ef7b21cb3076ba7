"""The way of requests between the shards of a node and its broker.

R1  A shard asks the broker about a topic that it does not have, by sending it the whole request. The broker
    answers, or says that no shared topic has the name (`NOT_SHARED`). Then the shard continues.
R2  A broker that gets a request from a client for such a name sends it to the shard of the placement, marked
    so that the shard does not ask. So a request crosses the link between the two at most once each way, but
    for R5.
R3  While the broker is away, a shard refuses requests for topics that it does not have. What it has is
    served without a question.
R4  A broker sends requests for a name that was no shared topic lately to the shard without such a mark and
    without a question to the catalog. The shard asks a broker unless it has the topic, so nothing is decided
    by what is remembered.
R5  A node may have several brokers. When one has asked a shard about a name that is free, it may create the
    topic: for RESERVED_SECONDS the shard sends requests for the name to that broker, also those that were
    answered before it asked, or are marked (R2). So no name gets a topic of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import (
    TOPIC_NOT_FOUND,
    Refusal,
    invalid,
    no_answer,
    not_ready,
    not_supported,
)
from shared.ipc.link import NEVER_SENT, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import NOT_SHARED, RemoteRequest, decode_answer, encode_remote_request
from shared.ipc.shared_placement import SharedPlacement
from topicsd.broker.broker import Broker
from topicsd.broker.steps import together
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.service.call import Call
from topicsd.service.handlers import GETS_DEAD_LETTERS
from topicsd.service.input.bodies import decode_patch
from topicsd.service.shards.remote_call import RemoteCaller
from topicsd.service.shared.asked_names import AskedNames, AskedRequest
from topicsd.service.shared.names import LocalLookup, is_local_name
from topicsd.service.shared.operations import CREATING, SharedOperations
from topicsd.service.topic_list import ListedTopic, decode_list_request, encode_listed

YesOrNo = Callable[[bool | Refusal], object]
OpenHere = Callable[[], object]

_SERVER_ERROR: Final = 500
LOCAL_SECONDS: Final = 10.0
"""How long a broker remembers that a name is not of a shared topic."""
LOCAL_MAX: Final = 10_000
RESERVED_SECONDS: Final = 30.0
"""Longer than a request to the catalog is repeated."""
RESERVED_MAX: Final = 10_000


class _Reservation:
    """A broker that may create the topic of a name, and until when (R5)."""

    __slots__ = ("broker", "until")

    def __init__(self, broker: int, until: float) -> None:
        self.broker = broker
        self.until = until


class BrokerRouting:
    """The routing of one worker process, on a node that has brokers."""

    def __init__(
        self, number: int, placement: SharedPlacement, links: LinkPool, caller: RemoteCaller
    ) -> None:
        """`number` is the owner number of a broker of this node."""
        self.number = number
        self._placement = placement
        self._links = links
        self._caller = caller
        self._names = AskedNames()
        self._reserved: dict[str, _Reservation] = {}

    def start(self, operation: str, call: Call, start_here: OpenHere) -> None:
        """Answer a request of a client for a topic that is not on this shard."""
        self._ask_about(self._names.add(operation, call, start_here))

    def _ask_about(self, request: AskedRequest) -> None:
        call = request.call
        reservation = self._reservation(call.name)
        broker = self._caller.ready_broker(self.number if reservation is None else reservation.broker)
        on_asked = partial(self._on_asked, request, reservation)
        try:
            self._caller.start(request.operation, broker, call, None, on_asked=on_asked)
        except Exception:
            self._names.end(request, is_local=False)
            raise

    def _on_asked(self, request: AskedRequest, known: _Reservation | None, is_local: bool) -> None:
        reservation = self._reservation(request.call.name)
        if is_local and reservation is not None and reservation is not known:
            # A broker may have begun to create it since (R5).
            self._ask_about(request)
        else:
            self._names.end(request, is_local=is_local)

    def reserve(self, name: str, broker: int) -> None:
        """Note that a broker asked about a name that is free (R5)."""
        now = self._caller.monotonic()
        if len(self._reserved) >= RESERVED_MAX:
            self._reserved = {one: kept for one, kept in self._reserved.items() if kept.until > now}
        self._reserved[name] = _Reservation(broker, now + RESERVED_SECONDS)

    def _reservation(self, name: str) -> _Reservation | None:
        one = self._reserved.get(name)
        return None if one is None or one.until <= self._caller.monotonic() else one

    def may_be_created(self, name: str) -> bool:
        """Return whether a broker may be creating a topic of this name now (R5)."""
        return name in self._names.by_name or self._reservation(name) is not None

    @property
    def names_in_question(self) -> Mapping[str, object]:
        return self._names.by_name

    def join(self, operation: str, call: Call, start_here: OpenHere) -> None:
        """Continue with a request for a topic that exists, after those before it."""
        self._names.join(operation, call, start_here)

    def open_jobs(self, call: Call, key: ApiKey | None, open_here: OpenHere) -> None:
        """Open a stream of jobs of a topic that is not on this shard."""
        self.find_shared(call.name, partial(self._open_jobs, call, key, open_here))

    def _open_jobs(
        self, call: Call, key: ApiKey | None, open_here: OpenHere, is_shared: bool | Refusal
    ) -> None:
        try:
            if isinstance(is_shared, Refusal):
                call.refuse(is_shared)
            elif is_shared:
                call.refuse(not_supported("queues"))
            else:
                self._continue("work", call, key, open_here)
        except Exception as error:
            call.fail("work", error)

    def _continue(self, operation: str, call: Call, key: ApiKey | None, start_here: OpenHere) -> None:
        """Continue with a request for a name that no shared topic has."""
        start_here()

    def find_shared(self, name: str, reply: YesOrNo) -> None:
        """Report whether a shared topic has the name."""
        broker = self._caller.ready_broker(self.number)
        self._ask("topic_state", broker, name, partial(self._on_answer, reply))

    def _ask(
        self, operation: str, owner: int, name: str, on_answer: Callable[[bytes | None], object]
    ) -> None:
        asker = b"%d" % self.number
        request = RemoteRequest(operation, name, "touch=false", "", "", "", asker, is_unshared=True)
        self._links.call(str(owner), LinkKind.REQUEST, encode_remote_request(request), on_answer)

    def _on_answer(self, reply: YesOrNo, answer: bytes | None) -> None:
        if not answer:
            reply(no_answer(self.number, is_broker=True))
            return
        status, _, body = decode_answer(answer)
        if status >= _SERVER_ERROR:
            reply(_refusal_in(body))
        else:
            reply(status != NOT_SHARED)


def _refuse_local_topic(operation: str, call: Call) -> Refusal:
    """Refuse to create a local topic on a server without shards."""
    if operation == "put_topic":
        patch = decode_patch(call.body)
        rule = 'must be "shared": this server has no shards, which have local topics'
        return patch if isinstance(patch, Refusal) else invalid("placement", rule)
    hint = 'create it by PUT with "placement":"shared": this server has no shards, which have local topics'
    return Refusal(TOPIC_NOT_FOUND, f'topic "{call.name}" does not exist; {hint}')


class BrokerProcessRouting(BrokerRouting):
    """The routing of a broker process, whose shard has no topics."""

    def __init__(
        self,
        number: int,
        placement: SharedPlacement,
        links: LinkPool,
        caller: RemoteCaller,
        broker: Broker,
        make_operations: Callable[[LocalLookup, LocalLookup], SharedOperations],
    ) -> None:
        """`make_operations` is given the lookups of local topics, and of queues with a dead-letter topic."""
        super().__init__(number, placement, links, caller)
        self._broker = broker
        self._monotonic = caller.monotonic
        self._local_until: dict[str, float] = {}
        self.operations = make_operations(self.find_local, self.find_queue)

    def start(self, operation: str, call: Call, start_here: OpenHere) -> None:
        continue_here = partial(self._continue, operation, call, None, start_here)
        is_local = self.local_owner(call.name) is not None
        if is_local and call.name in self.names_in_question:
            self._names.join(operation, call, continue_here)
        elif is_local:
            continue_here()
        else:
            end = partial(self._names.end, self._names.add(operation, call, continue_here))
            self.operations.start(
                operation,
                call,
                partial(end, is_local=True),
                on_shared=partial(end, is_local=False),
            )

    def local_owner(self, name: str) -> int | None:
        """Return the shard of a name that was no shared topic lately, or None (R4)."""
        until = self._local_until.get(name)
        if until is None or until < self._monotonic() or self._broker.topics.known(name) is not None:
            return None
        return self._placement.owner_of(name)

    def _keep_local(self, name: str) -> None:
        if len(self._local_until) >= LOCAL_MAX:
            self._local_until.clear()
        self._local_until[name] = self._monotonic() + LOCAL_SECONDS

    def answer_shard(self, operation: str, call: Call) -> None:
        """Answer a request of the shard that would have the topic, if it were a local one."""
        on_local = partial(call.send_parts, [], 0, NOT_SHARED)
        self.operations.start(operation, call, on_local)

    def _continue(self, operation: str, call: Call, key: ApiKey | None, start_here: OpenHere) -> None:
        if self._placement.shard_count:
            owner = self._placement.owner_of(call.name)
            # A shard that is sent one by memory alone asks a broker, unless it has the topic (R4).
            call.is_unshared = self.local_owner(call.name) is None
            if call.is_unshared:
                self._keep_local(call.name)
            self._caller.start(operation, owner, call, key)
        elif operation in CREATING:
            call.refuse(_refuse_local_topic(operation, call))
        else:
            start_here()

    def find_shared(self, name: str, reply: YesOrNo) -> None:
        def on_topic(topic: SharedTopic | Refusal | None) -> None:
            is_local = is_local_name(topic)
            reply(topic if isinstance(topic, Refusal) and not is_local else not is_local)

        self.operations.names.find(name, on_topic, may_create=True)

    def find_local(self, name: str, reply: YesOrNo) -> None:
        """Report whether this node has a local topic of the name."""
        if not self._placement.shard_count:
            reply(False)
            return
        owner = self._placement.owner_of(name)
        self._ask("has_name", owner, name, partial(self._on_local_answer, owner, reply))

    def find_queue(self, name: str, reply: YesOrNo) -> None:
        """Report whether a queue of this node has the name as its dead-letter topic.

        A shard that does not answer has none: if it has one, its jobs stay parked, and it says why.
        """
        asks = [
            partial(self._ask, GETS_DEAD_LETTERS, number, name)
            for number in range(self._placement.shard_count)
        ]

        def end(answers: list[bytes | None]) -> None:
            reply(any(decode_answer(one)[0] == _OK for one in answers if one))

        together(asks)(end)

    def _on_local_answer(self, owner: int, reply: YesOrNo, answer: bytes | None) -> None:
        if answer is None or answer == NEVER_SENT:
            reply(no_answer(owner))
            return
        status, _, body = decode_answer(answer)
        if status >= _SERVER_ERROR:
            reply(_refusal_in(body))
        else:
            # A local topic that another node owns is one too.
            reply(status != _NOT_FOUND)

    def list_topics(self, payload: bytes, reply: Callable[[bytes], object]) -> None:
        """Pass a page of shared topics to `reply`, or nothing while the catalog does not answer."""
        request = decode_list_request(payload)

        def end(outcome: list[SharedTopic] | OSError) -> None:
            reply(b"" if isinstance(outcome, OSError) else encode_listed([*map(_listed, outcome)]))

        self._broker.list(request.prefix, request.after, request.limit)(end)


_OK: Final = 200
_NOT_FOUND: Final = 404


class _RefusalText(msgspec.Struct, frozen=True):
    message: str = ""


class _RefusalBody(msgspec.Struct):
    error: _RefusalText = _RefusalText()


_decode_error: Final = msgspec.json.Decoder(_RefusalBody).decode


def _refusal_in(body: bytes) -> Refusal:
    """Return a refusal for now, with the reason of one that another process sent."""
    return not_ready(_decode_error(body).error.message)


def _listed(topic: SharedTopic) -> ListedTopic:
    return ListedTopic(
        topic.name,
        "log",
        "shared",
        topic.head,
        topic.first_seq,
        topic.head - topic.first_seq + 1,
        durable=True,
        durability="fsync",
    )
