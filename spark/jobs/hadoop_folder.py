"""A folder in any file system of Hadoop's client: local, HDFS, or an object store.

Spark writes with the same client, so whatever it can write can be moved here, with no second configuration. A
name is a path below the folder with `/` between its parts.

Promises: `write_new` creates a file whole or not at all, wherever a rename is atomic or an object appears
whole. Nothing is synced beyond what the file system does when a file is closed: a killed process loses
nothing that was written before, a power cut may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from spark.errors import SourceError
from spark.jobs.plain_error import plain_sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEMPORARY = ".new"


class Folder(Protocol):
    """The folder operations that the jobs need."""

    uri: str

    @property
    def local_path(self) -> str | None:
        """The path, or None if the folder is not on this machine."""
        ...

    def uri_of(self, name: str) -> str: ...

    def exists(self, name: str) -> bool: ...

    def names(self, name: str) -> list[str]:
        """Return the sorted names in a subfolder; empty if it does not exist."""
        ...

    def files(self, name: str) -> list[tuple[str, int]]:
        """Return all files below a subfolder: relative names, and sizes."""
        ...

    def read(self, name: str) -> bytes: ...

    def make(self, name: str) -> None: ...

    def write_new(self, name: str, data: bytes) -> None:
        """Write a file through a temporary name that readers ignore."""
        ...

    def rename(self, name: str, target: str) -> None:
        """Rename a file, replacing an existing target."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file or a folder with its contents; do nothing if it does not exist."""
        ...


class HadoopFolder:
    def __init__(self, session: SparkSession, uri: str) -> None:
        context: Any = session.sparkContext
        self._jvm = context._jvm
        root = self._jvm.org.apache.hadoop.fs.Path(uri)
        try:
            self._fs = root.getFileSystem(context._jsc.hadoopConfiguration())
        except Exception as error:
            raise SourceError(f"{uri}: no file system for this URI: {plain_sentence(error)}") from None
        self._root = root.makeQualified(self._fs.getUri(), self._fs.getWorkingDirectory())
        self.uri: str = self._root.toString()

    @property
    def local_path(self) -> str | None:
        uri = self._root.toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root

    def uri_of(self, name: str) -> str:
        return str(self._path(name).toString())

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def names(self, name: str) -> list[str]:
        if not self.exists(name):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path(name)))

    def files(self, name: str) -> list[tuple[str, int]]:
        files = []
        prefix_length = len(self._path(name).toUri().getPath()) + 1
        walk = self._fs.listFiles(self._path(name), True)
        while walk.hasNext():
            status = walk.next()
            files.append((str(status.getPath().toUri().getPath())[prefix_length:], int(status.getLen())))
        return sorted(files)

    def read(self, name: str) -> bytes:
        stream = self._fs.open(self._path(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def make(self, name: str) -> None:
        self._fs.mkdirs(self._path(name))

    def write_new(self, name: str, data: bytes) -> None:
        self._write(name + TEMPORARY, data)
        self.rename(name + TEMPORARY, name)

    def _write(self, name: str, data: bytes) -> None:
        stream = self._fs.create(self._path(name), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def rename(self, name: str, target: str) -> None:
        # HDFS refuses to rename over an existing file; a local directory does not.
        if self.exists(target):
            self.remove(target)
        self._fs.mkdirs(self._path(target).getParent())
        if not self._fs.rename(self._path(name), self._path(target)):
            raise SourceError(f"cannot rename {self.uri_of(name)} to {target}")

    def remove(self, name: str) -> None:
        self._fs.delete(self._path(name), True)
