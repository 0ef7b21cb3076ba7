"""The records of a run: each one says which producer sent it, as which of its records, and when.

    RUN.PRODUCER NUMBER SENT_US xxxxx…

RUN is a token of the run, so that records of earlier runs in the same partitions are not taken for its own;
SENT_US is the wall time in microseconds. The rest is filled up to the size of the scenario.
"""

from __future__ import annotations

import msgspec


class RecordRun(msgspec.Struct, frozen=True, order=True):
    """Records that follow each other, in their partition and for their producer, and were sent at once."""

    offset: int
    producer: str
    number: int
    count: int
    sent_us: int


def records_json(producer: str, first_number: int, count: int, sent_us: int, size: int) -> bytes:
    """Return a JSON list of records of `size` bytes.

    >>> records_json("r.0", 7, 2, 1000, 20)
    b'["r.0 7 1000 xxxxxxxxx","r.0 8 1000 xxxxxxxxx"]'
    """
    tail = f" {sent_us} "
    texts = []
    for number in range(first_number, first_number + count):
        head = f"{producer} {number}{tail}"
        texts.append(head + "x" * (size - len(head)))
    return ('["' + '","'.join(texts) + '"]').encode()


def runs_of(first_offset: int, values: list[str], size: int) -> list[RecordRun]:
    """Return the runs of records read from `first_offset` on. Raise ValueError for one that is damaged.

    >>> runs_of(4, ["r.0 7 1000 xxxxxxxxx", "r.0 8 1000 xxxxxxxxx", "r.1 1 1001 xxxxxxxxx"], 20)[1]
    RecordRun(offset=6, producer='r.1', number=1, count=1, sent_us=1001)
    """
    runs: list[RecordRun] = []
    producer = sent = ""
    first, number, start = 0, 0, first_offset
    for at, value in enumerate(values):
        if len(value) != size:
            raise ValueError(f"offset {first_offset + at}: {len(value)} bytes instead of {size}")
        name, own_number, sent_us, _ = value.split(" ", 3)
        if name == producer and sent_us == sent and int(own_number) == number + 1:
            number += 1
            continue
        if producer:
            runs.append(RecordRun(start, producer, first, number - first + 1, int(sent)))
        producer, sent, start = name, sent_us, first_offset + at
        first = number = int(own_number)
    if producer:
        runs.append(RecordRun(start, producer, first, number - first + 1, int(sent)))
    return runs
