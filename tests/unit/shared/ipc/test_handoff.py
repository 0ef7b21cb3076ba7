from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from shared.ipc.handoff import (
    DATA_BYTES_MAX,
    ChannelClosed,
    HandoffMessage,
    channel_pair,
    receive_connections,
    send_connection,
    send_drain,
)

Channel = tuple[socket.socket, socket.socket]


@pytest.fixture
def channel() -> Iterator[Channel]:
    sender, receiver = channel_pair()
    yield sender, receiver
    sender.close()
    receiver.close()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """What a client holds, and what was accepted."""
    client, accepted = socket.socketpair()
    yield client, accepted
    client.close()
    accepted.close()


def test_a_connection_arrives_with_its_bytes_and_stays_open(channel: Channel, connection: Channel) -> None:
    sender, receiver = channel
    client, accepted = connection
    assert send_connection(sender, accepted.fileno(), b"GET / HTTP/1.1\r\n")
    accepted.close()
    [handed] = receive_connections(receiver)
    assert handed == HandoffMessage(handed.fd, b"GET / HTTP/1.1\r\n")
    assert not os.get_inheritable(handed.fd)
    with socket.socket(fileno=handed.fd) as received:
        received.sendall(b"hello")
        assert client.recv(100) == b"hello"
        client.sendall(b"more")
        assert received.recv(100) == b"more"


@pytest.mark.parametrize("size", [0, 1, DATA_BYTES_MAX])
def test_data_of_every_size_arrives_whole(channel: Channel, connection: Channel, size: int) -> None:
    sender, receiver = channel
    data = os.urandom(size)
    assert send_connection(sender, connection[1].fileno(), data)
    [handed] = receive_connections(receiver)
    os.close(handed.fd)
    assert handed.data == data


def test_too_much_data_for_a_message_is_an_assertion_error(channel: Channel, connection: Channel) -> None:
    with pytest.raises(AssertionError):
        send_connection(channel[0], connection[1].fileno(), bytes(DATA_BYTES_MAX + 1))


def test_messages_arrive_in_order_and_the_drain_after_them(channel: Channel, connection: Channel) -> None:
    sender, receiver = channel
    for number in range(3):
        assert send_connection(sender, connection[1].fileno(), b"%d" % number)
    assert send_drain(sender)
    received = receive_connections(receiver)
    assert [(one.data, one.is_drain) for one in received] == [
        (b"0", False),
        (b"1", False),
        (b"2", False),
        (b"", True),
    ]
    for one in received[:3]:
        os.close(one.fd)


def test_an_empty_channel_is_not_closed(channel: Channel) -> None:
    assert receive_connections(channel[1]) == []


def test_at_most_count_max_messages_are_received_at_once(channel: Channel, connection: Channel) -> None:
    sender, receiver = channel
    for _ in range(5):
        assert send_connection(sender, connection[1].fileno(), b"x")
    counts = []
    for _ in range(3):
        received = receive_connections(receiver, count_max=2)
        counts.append(len(received))
        for one in received:
            os.close(one.fd)
    assert counts == [2, 2, 1]


def test_the_channel_ends_after_everything_that_was_sent(channel: Channel, connection: Channel) -> None:
    sender, receiver = channel
    assert send_connection(sender, connection[1].fileno(), b"last")
    sender.close()
    [handed] = receive_connections(receiver)
    os.close(handed.fd)
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            receive_connections(receiver)


def test_a_full_channel_rejects_messages_until_it_is_read(channel: Channel, connection: Channel) -> None:
    sender, receiver = channel
    sent = 0
    while send_connection(sender, connection[1].fileno(), bytes(32_000)):
        sent += 1
    assert sent >= 4
    received = receive_connections(receiver, count_max=1000)
    assert len(received) == sent
    for one in received:
        os.close(one.fd)
    assert send_connection(sender, connection[1].fileno(), b"again")


def test_a_channel_without_a_receiver_is_an_error(channel: Channel, connection: Channel) -> None:
    channel[1].close()
    with pytest.raises(BrokenPipeError):
        send_connection(channel[0], connection[1].fileno(), b"x")


def test_any_holder_of_the_receiving_end_can_receive_pending_messages(
    channel: Channel, connection: Channel
) -> None:
    sender, receiver = channel
    worker_end = receiver.dup()
    for _ in range(3):
        assert send_connection(sender, connection[1].fileno(), b"x")
    by_worker = receive_connections(worker_end, count_max=1)
    received_again = receive_connections(receiver)
    assert (len(by_worker), len(received_again)) == (1, 2)
    assert receive_connections(worker_end) == []
    worker_end.close()
    for one in [*by_worker, *received_again]:
        os.close(one.fd)


def test_without_a_descriptor_the_connection_is_lost_and_the_rest_is_received(
    channel: Channel, connection: Channel
) -> None:
    sender, receiver = channel
    client, accepted = connection
    assert send_connection(sender, accepted.fileno(), b"lost")
    assert send_drain(sender)
    accepted.close()
    lost: list[int] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
        received = receive_connections(receiver, on_lost=lambda: lost.append(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [one.is_drain for one in received] == [True]
    assert lost == [1]
    assert client.recv(10) == b""
