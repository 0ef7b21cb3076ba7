"""Explanations of denied access to a path: the part that denies it, its owner and mode, and our user.

This module only reads; the calls that fail are made through `Fs`.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from typing import Final

_DENIED: Final = frozenset((errno.EACCES, errno.EPERM))


def os_error_sentence(error: OSError) -> str:
    """Return one sentence about a failed call: path, reason, and for denied access the owner.

    >>> os_error_sentence(OSError(errno.EIO, "Input/output error", "data/LAYOUT.json"))
    'data/LAYOUT.json: Input/output error'
    """
    reason = os_error_reason(error)
    return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"


def os_error_reason(error: OSError) -> str:
    """Return the reason of a failed call without the path, for messages that name the path."""
    reason = error.strerror or str(error)
    if error.filename is None or error.errno not in _DENIED:
        return reason
    denial = denial_of(os.fsdecode(error.filename))
    return f"{reason}: {denial}" if denial else reason


def access_problem(path: str) -> str | None:
    """Return why this process cannot read and write a file or a directory, or None."""
    mode = os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(path) else 0)
    if os.access(path, mode):
        return None
    try:
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        is_read_only = 0
    if is_read_only:
        return f"{path}: the file system is mounted read-only"
    return f"{path}: permission denied: {denial_of(path) or 'reason unknown'}"


def denial_of(path: str) -> str:
    """Name the part of a path that denies access, with owner and mode; empty when unknown."""
    try:
        part = _denying_part(os.path.abspath(path))
        if part is None:
            return ""
        part_stat = os.stat(part)
    except OSError:
        return ""
    owner = f"{user_name(part_stat.st_uid)}, mode {stat.S_IMODE(part_stat.st_mode):04o}"
    subject = "it" if part == os.path.abspath(path) else part
    return f"{subject} is owned by {owner}, and this process runs as {user_name(os.geteuid())}"


def user_name(uid: int) -> str:
    """Return a user's name and uid, or the uid alone.

    >>> user_name(0)
    'root (uid 0)'
    """
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _denying_part(path: str) -> str | None:
    """Return the first part of the path that denies access, or None.

    That is the first directory without search permission, else the path itself, or its parent directory when
    the path does not exist.
    """
    parts = path.split(os.sep)
    for count in range(1, len(parts)):
        ancestor = os.sep.join(parts[:count]) or os.sep
        if not os.access(ancestor, os.X_OK):
            return ancestor
    last = path if os.path.lexists(path) else os.path.dirname(path)
    return None if os.access(last, os.R_OK | os.W_OK) else last
