"""The command `topicsd`, also `python -m topicsd`. See `cli/main.py`.

The module is thin so that an interrupt is reported the same way while the rest is still being loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys

INTERRUPTED = 130

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` puts the current directory first in sys.path: keep it only for a source tree run in place.
    _ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError):
        if sys.path[:1] == [os.getcwd()] != [_ROOT]:
            del sys.path[0]


def main(arguments: list[str] | None = None) -> int:
    if not __debug__:
        # The assertions guard what is written to the disk and read back.
        print("topicsd: must run with assertions enabled: remove -O and PYTHONOPTIMIZE", file=sys.stderr)
        return 2
    try:
        from topicsd.cli.main import run

        return run(arguments)
    except KeyboardInterrupt:
        print("topicsd: interrupted", file=sys.stderr)
        with contextlib.suppress(OSError):
            # The reader of the output may have ended too; the interpreter would report a failed flush.
            sys.stdout.close()
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
