"""The load generator: a C program, compiled at its first use, run as a process.

It is written in C because on two cores a generator in Python would be the slower half of the measurement. It
is compiled here because it has no dependencies except a C compiler. The name of the program contains the
checksum of its sources: changed sources give a new program, and two tests that compile at the same time do
not conflict.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile

import msgspec

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NATIVE = os.path.join(HERE, "native")
BUILT = os.path.join(HERE, ".build")


class GeneratorMissing(Exception):
    """The load generator is missing and cannot be compiled; the text says how to fix it."""


class LoadFailed(Exception):
    """The load could not run at all: nothing listens, or the options are wrong."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load to send; the fields are the options that `load --help` lists."""

    path: str = "/"
    method: str = "POST"
    body: bytes = b""
    targets: str | None = None
    own_targets: bool = False
    connections: int = 1
    pipeline: int = 1
    seconds: float = 1.0
    warmup: float = 0.0
    requests: int = 0
    rate: float = 0.0
    drain: float = 5.0
    new_connection_each: bool = False
    headers: tuple[str, ...] = ()


class Latency(msgspec.Struct, frozen=True):
    """Latencies in microseconds; in an open loop, from the time at which a request was due."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float


class LoadResult(msgspec.Struct, frozen=True):
    """The result of a load.

    `answers` and `per_second` are of the measured time, `sent` is of the whole run.
    """

    seconds: float
    per_second: float
    answers: int
    sent: int
    refused: int
    malformed: int
    broken: int
    unconnected: int
    reconnects: int
    unanswered: int
    unsent: int
    body_bytes: int
    cpu_seconds: float
    statuses: dict[str, int]
    refusal: str
    complaint: str
    latency_us: Latency

    def fault(self) -> str | None:
        """Return the first fault as a sentence, or None; a figure with a fault is invalid."""
        if self.refused:
            return f"{self.refused} answers were not 2xx, the first: {self.refusal}"
        if self.malformed:
            return f"{self.malformed} answers were malformed: {self.complaint}"
        for name in ("broken", "unconnected", "unanswered"):
            if count := getattr(self, name):
                return f"{count} requests were {name}"
        return None if self.answers else "no answer arrived in the measured time"


def program(name: str = "load") -> str:
    """Return the path of a program of `native/`, compiled if it does not exist."""
    summed = hashlib.sha256()
    for file in sorted(os.listdir(NATIVE)):
        with open(os.path.join(NATIVE, file), "rb") as source:
            summed.update(file.encode() + b"\0" + source.read())
    built = os.path.join(BUILT, f"{name}-{summed.hexdigest()[:16]}")
    if not os.path.exists(built):
        _compile(name, built)
    return built


def _compile(name: str, built: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise GeneratorMissing(
            "the load generator is a C program, and no C compiler was found: "
            "install one (gcc or clang), or name it in CC"
        )
    os.makedirs(BUILT, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as home:
        part = os.path.join(home, name)
        source = os.path.join(NATIVE, f"{name}.c")
        command = [compiler, "-O2", "-o", part, source, "-lm"]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise GeneratorMissing(f"{compiler} does not compile {source}:\n{compiled.stderr.strip()}")
        os.replace(part, built)


def arguments(port: int, load: Load, body_file: str | None) -> list[str]:
    """Return the command line of a load, without the program."""
    given = [f"--port={port}", f"--path={load.path}", f"--method={load.method}"]
    for name in ("connections", "pipeline", "seconds", "warmup", "requests", "rate", "drain"):
        given.append(f"--{name}={getattr(load, name)}")
    if load.targets is not None:
        given.append(f"--targets={load.targets}")
    if body_file is not None:
        given.append(f"--body-file={body_file}")
    given += [f"--header={header}" for header in load.headers]
    flags = {"--own-targets": load.own_targets, "--new-connection-each": load.new_connection_each}
    return given + [flag for flag, is_on in flags.items() if is_on]


def run(port: int, load: Load) -> LoadResult:
    """Run the load against the server at 127.0.0.1:port; return the result."""
    command = program()
    # A closed loop of a number of requests takes as long as the server does; every other load has a known
    # end.
    timeout = load.seconds + load.warmup + load.drain + (600 if load.requests else 30)
    with tempfile.NamedTemporaryFile(prefix="topicsd-body-") as body:
        body.write(load.body)
        body.flush()
        given = arguments(port, load, body.name if load.body else None)
        done = subprocess.run([command, *given], capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        raise LoadFailed(done.stderr.strip() or f"load ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=LoadResult)
