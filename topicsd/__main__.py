"""The command `topicsd`, also `python -m topicsd`. See `cli/main.py`.

It is thin so that an interrupt is told in one way from the first moment on, also while the rest is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys

INTERRUPTED = 130

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` puts the current directory in front: only a source tree that is run in place stays there.
    _ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError):
        if sys.path[:1] == [os.getcwd()] != [_ROOT]:
            del sys.path[0]


def main(arguments: list[str] | None = None) -> int:
    if not __debug__:
        # The asserts guard what is written to the disk and what is believed of it.
        print("topicsd: does not run without asserts: leave out -O and PYTHONOPTIMIZE", file=sys.stderr)
        return 2
    try:
        from topicsd.cli.main import run

        return run(arguments)
    except KeyboardInterrupt:
        print("topicsd: interrupted", file=sys.stderr)
        with contextlib.suppress(OSError):
            # What it wrote to may have ended with it, and the interpreter would complain about that.
            sys.stdout.close()
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
