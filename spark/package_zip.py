"""The project's packages as a zip for the machines of a Spark cluster (`--py-files`).

A wheel is a zip too, but Spark puts only `.zip`, `.egg` and `.jar` files on the path of Python. The zip has
the code for reading and writing, and nothing compiled, since compiled modules cannot be imported from a zip:
msgspec, numpy, pyarrow and xxhash must be installed on the machines.

Promises: the same packages produce the same bytes.
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
    """Yield each name in the zip with its file."""
    root = Path(__file__).resolve().parent.parent
    yield SOURCE, root / SOURCE
    for package in PACKAGES:
        for file in sorted(file for kind in KINDS for file in (root / package).rglob(kind)):
            yield file.relative_to(root).as_posix(), file
