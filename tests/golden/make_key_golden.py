"""The golden KEYS.json of the running format, with a value in every field.

Run it once for each version of the format that is released, and commit what it writes; never again for the
same version::

    .venv/bin/python -m tests.golden.make_key_golden
"""

from __future__ import annotations

import sys
from pathlib import Path

from shared.ipc.key_file import KEYS_FORMAT, KEYS_NAME, StoredKey, encode_keys

GOLDEN = Path(__file__).parent


def sample() -> list[StoredKey]:
    return [
        StoredKey(
            name="billing",
            digest="0123456789abcdef" * 4,
            scopes=("read", "write"),
            prefixes=("orders.", "bills:"),
            created_ms=1_795_150_555_306,
            expires_ms=1_795_150_557_351,
            former_digest="fedcba9876543210" * 4,
            former_expires_ms=1_795_150_556_000,
        ),
        StoredKey(name="root", digest="a" * 64, scopes=("admin",), created_ms=1),
    ]


def main() -> int:
    target = GOLDEN / f"key-file-{KEYS_FORMAT}" / KEYS_NAME
    if target.exists():
        print(f"{target} exists: a released version never changes", file=sys.stderr)
        return 1
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(encode_keys(sample()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
