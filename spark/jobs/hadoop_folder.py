"""A folder in whatever file system its URI names, through Hadoop's client: local, HDFS, or an object store.

Spark writes there with the same client, so what it can write we can move, and no configuration is needed
twice. A name is a path below the folder with `/` between its parts.

Promises: `write_new` makes a file whole or not at all, wherever a rename is atomic or an object appears
whole. Nothing is synced beyond what the file system does when a file is closed: a killed process loses
nothing of what was written before, a power cut may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from spark.errors import SourceError
from spark.jobs.plain_error import plain_sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEMPORARY = ".new"


class Folder(Protocol):
    """What the jobs ask of one."""

    uri: str

    @property
    def local_path(self) -> str | None:
        """None when it is in no directory of this machine."""
        ...

    def uri_of(self, name: str) -> str: ...

    def exists(self, name: str) -> bool: ...

    def names(self, name: str) -> list[str]:
        """Of what is in a folder below, in their order; none when it is not there."""
        ...

    def files(self, name: str) -> list[tuple[str, int]]:
        """Everything below a folder: names as seen from there, and sizes."""
        ...

    def read(self, name: str) -> bytes: ...

    def make(self, name: str) -> None: ...

    def write_new(self, name: str, data: bytes) -> None:
        """Under another name first, which readers pass over."""
        ...

    def rename(self, name: str, target: str) -> None:
        """In the place of what is there."""
        ...

    def remove(self, name: str) -> None:
        """With all that is in it; nothing when it is not there."""
        ...


class HadoopFolder:
    def __init__(self, session: SparkSession, uri: str) -> None:
        context: Any = session.sparkContext
        self._jvm = context._jvm
        root = self._jvm.org.apache.hadoop.fs.Path(uri)
        try:
            self._fs = root.getFileSystem(context._jsc.hadoopConfiguration())
        except Exception as error:
            raise SourceError(f"{uri}: there is no file system for it ({plain_sentence(error)})") from None
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
        found = []
        above = len(self._path(name).toUri().getPath()) + 1
        walk = self._fs.listFiles(self._path(name), True)
        while walk.hasNext():
            status = walk.next()
            found.append((str(status.getPath().toUri().getPath())[above:], int(status.getLen())))
        return sorted(found)

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
        # HDFS refuses to rename over something, and a local directory does not.
        if self.exists(target):
            self.remove(target)
        self._fs.mkdirs(self._path(target).getParent())
        if not self._fs.rename(self._path(name), self._path(target)):
            raise SourceError(f"{self.uri_of(name)} cannot be renamed to {target}")

    def remove(self, name: str) -> None:
        self._fs.delete(self._path(name), True)
