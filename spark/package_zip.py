"""The project's own packages as a zip, as Spark sends it to the machines of a cluster (`--py-files`).

A wheel would be one too, but Spark puts only what is called `.zip`, `.egg` or `.jar` on the path of Python.
It has what reading and writing take and nothing compiled; what those import (msgspec, numpy, pyarrow, xxhash)
has to be installed there, as nothing that is compiled can be imported from a zip.

Promises: the same packages give the same bytes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

KINDS = ("*.py", "*.java")
PACKAGES = ("shared", "spark", "topicsd")
SOURCE = "pyspark_topicsd.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_zip(path: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in contents():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)


def contents() -> Iterator[tuple[str, Path]]:
    """Names in the zip, and the files."""
    root = Path(__file__).resolve().parent.parent
    yield SOURCE, root / SOURCE
    for package in PACKAGES:
        for file in sorted(file for kind in KINDS for file in (root / package).rglob(kind)):
            yield file.relative_to(root).as_posix(), file
