"""The load generator: a C program, compiled when it is first used, run as a process, read as a struct.

In C because on two cores a generator in Python would be the slower half of what is measured; compiled here
because it has no dependencies, so that nobody has to install anything but a C compiler. The program carries
the sum of its sources in its name: a change of them is a new program, and two tests that compile at the same
time do not meet.
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
    """There is no load generator and none can be made; the text says what to do."""


class LoadFailed(Exception):
    """The load could not be put on the server at all: nothing listens, or the options are wrong."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent; the fields are the options that `load --help` tells of."""

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
    """In microseconds; of an open loop from the time at which the request should have been sent."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float


class Measured(msgspec.Struct, frozen=True):
    """What came of a load. `answers` and `per_second` are of the measured time, `sent` of the whole run."""

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
        """The first thing that went wrong, as a sentence; a figure with a fault in it is no figure."""
        if self.refused:
            return f"{self.refused} answers were not 2xx, the first: {self.refusal}"
        if self.malformed:
            return f"{self.malformed} answers were malformed: {self.complaint}"
        for name in ("broken", "unconnected", "unanswered"):
            if count := getattr(self, name):
                return f"{count} requests were {name}"
        return None if self.answers else "there was no answer"


def program(name: str = "load") -> str:
    """The path of a program of `native/`, compiled unless it is there."""
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
            "the load generator is a C program and there is no C compiler here: "
            "install one (gcc or clang), or name it in CC"
        )
    os.makedirs(BUILT, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as home:
        part = os.path.join(home, name)
        source = os.path.join(NATIVE, f"{name}.c")
        command = [compiler, "-O2", "-o", part, source, "-lm"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise GeneratorMissing(f"{compiler} does not compile {source}:\n{made.stderr.strip()}")
        os.replace(part, built)


def arguments(port: int, load: Load, body_file: str | None) -> list[str]:
    """The command line of a load, without the program."""
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


def run(port: int, load: Load) -> Measured:
    """Put the load on what listens at 127.0.0.1:port, and tell what came of it."""
    command = program()
    # A closed loop of so many requests takes as long as the server does; everything else has a known end.
    patience = load.seconds + load.warmup + load.drain + (600 if load.requests else 30)
    with tempfile.NamedTemporaryFile(prefix="topicsd-body-") as body:
        body.write(load.body)
        body.flush()
        given = arguments(port, load, body.name if load.body else None)
        done = subprocess.run(
            [command, *given], capture_output=True, text=True, check=False, timeout=patience
        )
    if done.returncode:
        raise LoadFailed(done.stderr.strip() or f"load ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Measured)
