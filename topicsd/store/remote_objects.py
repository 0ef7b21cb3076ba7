"""Objects in Amazon S3, Google Cloud Storage or Azure, and in everything that speaks S3, through obstore.

obstore is imported here and nowhere else, and only in processes that never fork: its threads do not survive a
fork (R8). Its own retries are off, since `create_object.py` has to see each failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from topicsd.store.object_store import ObjectExists, ObjectInfo, StoreRefused, StoreUnavailable, check_key

EXTRA: Final = "topicsd[store]"
PUT_ID: Final = "put-id"
CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 30
# One request, for which the store checks the condition; a multipart upload has another path for it (P11).
_ONE_REQUEST: Final = False


class ExtraMissing(Exception):
    """The client library is not installed; the message says how to install it."""


class RemoteObjects:
    """An object store behind a URL such as `s3://bucket/prefix?endpoint=http://127.0.0.1:9000`.

    Credentials come from where the vendor's own tools look for them (environment, files, the machine's role),
    and never from the URL, which is logged.
    """

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore import exceptions
            from obstore.store import from_url
        except ImportError:
            scheme = urlsplit(url).scheme
            raise ExtraMissing(f"{scheme}: needs a client library; install {EXTRA}") from None
        parts = urlsplit(url)
        self.url = parts._replace(query="").geturl().rstrip("/")
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        client = {
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "allow_http": options.get("endpoint", "").startswith("http://"),
        }
        self._obstore = obstore
        self._errors = exceptions
        try:
            # The types of obstore know the options of each scheme, and no scheme that is a variable.
            make: Any = from_url
            self._store = make(self.url, client_options=client, retry_config={"max_retries": 0}, **options)
        except exceptions.BaseError as error:
            raise StoreRefused(f"{self.url}: {_first_line(error)}") from None

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        check_key(key)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            self._obstore.put(
                self._store,
                key,
                data,
                mode="create",
                attributes={PUT_ID: put_id},
                use_multipart=_ONE_REQUEST,
            )
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            raise ObjectExists(f"{self.url}/{key} exists") from None
        except self._errors.BaseError as error:
            raise self._store_error(key, error) from None

    def read(self, key: str, offset: int, size: int) -> bytes:
        try:
            return bytes(self._obstore.get_range(self._store, key, start=offset, length=size))
        except self._errors.BaseError as error:
            mapped = self._store_error(key, error)
        # A range that begins at or after the end is an error of the store, where a file gives no bytes.
        if isinstance(mapped, StoreUnavailable | StoreRefused) and offset >= self.info(key).size:
            return b""
        raise mapped

    def info(self, key: str) -> ObjectInfo:
        try:
            # A request for no byte: `head` has no attributes.
            result = self._obstore.get(self._store, key, options={"head": True})
        except self._errors.BaseError as error:
            raise self._store_error(key, error) from None
        return _info(key, result.meta, result.attributes.get(PUT_ID))

    def delete(self, key: str) -> None:
        try:
            self._obstore.delete(self._store, key)
        except self._errors.NotFoundError:
            pass
        except self._errors.BaseError as error:
            raise self._store_error(key, error) from None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        # A listing by prefix is of whole path parts; the rest of the prefix is compared here.
        folder = prefix.rpartition("/")[0]
        try:
            pages = self._obstore.list(self._store, folder or None, offset=after or None)
            for page in pages:
                for meta in page:
                    if meta["path"].startswith(prefix) and meta["path"] > after:
                        yield _info(meta["path"], meta, None)
        except self._errors.BaseError as error:
            raise self._store_error(prefix, error) from None

    def close(self) -> None:
        pass

    def _store_error(self, key: str, error: Exception) -> OSError:
        errors = self._errors
        message = f"{self.url}/{key}: {_first_line(error)}"
        if isinstance(error, errors.NotFoundError):
            return FileNotFoundError(message)
        if isinstance(
            error, errors.PermissionDeniedError | errors.UnauthenticatedError | errors.NotSupportedError
        ):
            return StoreRefused(message)
        return StoreUnavailable(message)


def _info(key: str, meta: Any, put_id: str | None) -> ObjectInfo:
    return ObjectInfo(key, meta["size"], int(meta["last_modified"].timestamp() * 1000), put_id)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
