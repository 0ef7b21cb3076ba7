"""The URL of a catalog: its forms, a missing client library, and no password in any message."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shared.settings.catalog_url import refuse_catalog_url
from tests.unit.catalog.test_key_value_crowd import policy
from topicsd.catalog.catalog import CatalogExtraMissing, CatalogRefused, CatalogUnavailable
from topicsd.catalog.open_catalog import open_catalog


@pytest.mark.parametrize(
    "url",
    ["sqlite:relative", "sqlite://host/file", "postgresql:", "postgresql://host", "etcd://", "etcd://h:x",
     "oxia:///namespace", "mongodb://host", ""],
)  # fmt: skip
def test_a_url_of_another_form_is_refused_without_quoting_it(tmp_path: Path, url: str) -> None:
    assert refuse_catalog_url(url) is not None
    with pytest.raises(CatalogRefused, match=r"^catalog URL: must "):
        open_catalog(url, str(tmp_path), policy())


def test_sqlite_without_a_path_is_a_file_in_the_data_directory(tmp_path: Path) -> None:
    catalog = open_catalog("sqlite:", str(tmp_path), policy())
    assert catalog.url == f"sqlite://{tmp_path}/catalog.sqlite"
    catalog.close()
    other = open_catalog(f"sqlite://{tmp_path}/with%20space", "/nowhere", policy())
    assert (tmp_path / "with space").exists()
    other.close()


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [
        ("postgresql://host/database", "psycopg", "topicsd[postgresql]"),
        ("etcd://host:1", "aetcd", "topicsd[etcd]"),
        ("oxia://host:1/namespace", "oxia", "topicsd[oxia]"),
    ],
)
def test_a_missing_client_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(CatalogExtraMissing) as missing:
        open_catalog(url, "/nowhere", policy())
    assert str(missing.value).endswith(f": needs a client library; install {extra}")


@pytest.mark.parametrize(
    "url",
    ["postgresql://user:secret@127.0.0.1:1/database", "postgresql://127.0.0.1:1/database?password=secret",
     "postgresql://127.0.0.1:1/database?secret=x", "etcd://user:secret@127.0.0.1:1"],
)  # fmt: skip
def test_no_message_has_a_password(url: str) -> None:
    with pytest.raises((CatalogRefused, CatalogUnavailable)) as failure:
        open_catalog(url, "/nowhere", policy(seconds=0.0))
    assert "secret" not in str(failure.value)
