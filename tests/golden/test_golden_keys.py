"""Every released format of KEYS.json stays readable, and damage to any of its bytes is found."""

from __future__ import annotations

import pytest

from shared.ipc.key_file import KEYS_FORMAT, KEYS_NAME, KeyFileError, decode_keys
from tests.golden.make_key_golden import GOLDEN, sample

VERSIONS = sorted(path.name for path in GOLDEN.glob("key-file-*"))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_keys_of_a_released_file_are_read(version: str) -> None:
    assert decode_keys((GOLDEN / version / KEYS_NAME).read_bytes(), KEYS_NAME) == sample()


def test_the_running_format_has_a_golden_file() -> None:
    assert f"key-file-{KEYS_FORMAT}" in VERSIONS


def test_a_file_that_is_cut_or_changed_anywhere_is_refused() -> None:
    whole = (GOLDEN / f"key-file-{KEYS_FORMAT}" / KEYS_NAME).read_bytes()
    end = whole.rindex(b"}")
    for place in range(end):
        with pytest.raises(KeyFileError):
            decode_keys(whole[:place], KEYS_NAME)
        changed = bytearray(whole)
        changed[place] ^= 1
        with pytest.raises(KeyFileError):
            decode_keys(bytes(changed), KEYS_NAME)
