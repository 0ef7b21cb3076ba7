"""Run the tests in two processes side by side, since most of them wait for a server, a disk or a clock.

A test that fails beside the others is run again by itself, and is reported either way: on a machine with two
busy cores a server may be later than a test allows. More than `RETRIED_MAX` failures are no accident.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
SECOND: Final = ("model", "spark", "stack", "unit")
"""The folders of the second process; the first one has all others. Each takes about half of the time."""
RETRIED_MAX: Final = 5
TESTS_FAILED: Final = 1
"""The exit code of pytest when it ran all tests, and some failed."""


def folders() -> tuple[list[str], list[str]]:
    names = sorted(path.name for path in TESTS.iterdir() if any(path.glob("**/test_*.py")))
    return [name for name in names if name not in SECOND], [name for name in names if name in SECOND]


def command(cache: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]


def failed_in(cache: Path) -> list[str]:
    """Return the ids of the tests that failed, which pytest keeps in its cache."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def run(options: list[str]) -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tests-") as directory:
        caches = [Path(directory, "first"), Path(directory, "second")]
        first, second = ([f"tests/{name}" for name in names] for names in folders())
        with open(Path(directory, "output"), "w+b") as output:
            beside = subprocess.Popen(
                command(caches[1], *options, *second), stdout=output, stderr=subprocess.STDOUT
            )
            try:
                codes = [subprocess.call(command(caches[0], *options, *first)), beside.wait()]
            finally:
                # Ctrl-C has reached both; a second process that still runs would outlive this one.
                beside.terminate()
                beside.wait()
            output.seek(0)
            sys.stdout.write(output.read().decode(errors="replace"))
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        print(f"== both processes: {minutes}:{seconds:02d}", flush=True)
        failed = [one for cache in caches for one in failed_in(cache)]
        if not set(codes) <= {0, TESTS_FAILED} or (any(codes) and not 0 < len(failed) <= RETRIED_MAX):
            return max(map(abs, codes))
        if not failed:
            return 0
        print("== failed beside the others, and run again:", *failed, sep="\n  ", flush=True)
        return subprocess.call(command(caches[0], *options, *failed))


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
