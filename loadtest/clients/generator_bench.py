"""The performance of the load generator next to wrk, against servers that only respond.

Two values count: the CPU cost of a request in the generator, since it is taken from the server on the same
cores, and a rate against a bare server above that of any real server.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable

from loadtest.bench.subjects import Subjects, environ
from loadtest.clients import generator
from loadtest.clients.generator import Load
from loadtest.clients.processes import Running

CONNECTIONS = 32

Rate = tuple[float, float]


def with_load(port: int, seconds: float) -> Rate:
    """Return requests per second, and the CPU microseconds of the generator for each."""
    measured = generator.run(port, Load(method="GET", connections=CONNECTIONS, seconds=seconds))
    assert measured.fault() is None, measured.fault()
    return measured.per_second, measured.cpu_seconds / measured.sent * 1e6


def with_wrk(port: int, seconds: float) -> Rate:
    """Measure the same with wrk, which accepts only whole seconds."""
    whole = max(1, round(seconds))
    home = tempfile.mkdtemp(prefix="topicsd-wrk-")
    try:
        output = os.path.join(home, "output")
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{whole}", f"http://127.0.0.1:{port}/"]
        opened = (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT, 0o600)
        pid = os.posix_spawnp("wrk", command, os.environ, file_actions=[opened])
        _, status, usage = os.wait4(pid, 0)
        assert status == 0, "wrk failed"
        with open(output, encoding="utf-8") as file:
            words = file.read().split()
    finally:
        shutil.rmtree(home)
    count = int(words[words.index("requests") - 1])
    rate = float(words[words.index("Requests/sec:") + 1])
    return rate, (usage.ru_utime + usage.ru_stime) / count * 1e6


def fixed_answer(home: str) -> Running:
    """Start the C program that sends the same response to every request."""
    own = os.path.join(home, "fixed-answer")
    os.makedirs(own)
    return Running([generator.program("fixed_answer"), os.path.join(own, "port")], own, environ())


def run(rounds: int, seconds: float) -> None:
    """Measure each server with each generator, and print a line for each."""
    tools: dict[str, Callable[[int, float], Rate]] = {"load": with_load}
    if shutil.which("wrk"):
        tools["wrk"] = with_wrk
    else:
        print("wrk: not installed, measuring the load generator alone")
    with (
        tempfile.TemporaryDirectory(prefix="topicsd-generator-") as home,
        Subjects(home).ceiling("answer_ceiling") as bare,
        fixed_answer(home) as native,
    ):
        for title, server in (("bare uvloop", bare), ("fixed answer in C", native)):
            rates: dict[str, list[Rate]] = {name: [] for name in tools}
            for _ in range(rounds):
                for name, tool in tools.items():
                    rates[name].append(tool(server.port, seconds))
            for name, samples in rates.items():
                rate, cpu = (statistics.median(one[at] for one in samples) for at in (0, 1))
                print(f"{title:<20} {name:<6} {rate:>9,.0f} requests/s {cpu:>6.2f} us of CPU a request")
