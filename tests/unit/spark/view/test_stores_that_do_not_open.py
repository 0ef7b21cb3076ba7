from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark.errors import SourceError
from spark.source.read_options import ReadOptions, parse_options
from spark.view.backup_view import BackupView
from spark.view.catalog_view import CatalogView


def options(**given: str) -> ReadOptions:
    return parse_options({"subscribe": "orders", **given}, is_stream=False)


def test_a_missing_client_library_of_a_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for view in (BackupView, CatalogView):
        with pytest.raises(SourceError, match=r"path: s3: needs a client library; install topicsd\[store\]"):
            view(options(path="s3://bucket", **({"catalog": "etcd://a:1"} if view is CatalogView else {})))


def test_a_missing_client_library_of_a_catalog_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SourceError, match=r"catalog: postgresql: needs a client library; install topicsd\["):
        CatalogView(options(path=f"file://{tmp_path}", catalog="postgresql://host/topics"))


def test_a_catalog_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for catalog in ("sqlite:", f"sqlite://{tmp_path}/catalog.sqlite"):
        with pytest.raises(SourceError, match=rf"catalog: {tmp_path}/catalog.sqlite does not exist"):
            CatalogView(options(path=f"file://{tmp_path}", catalog=catalog))
    assert list(tmp_path.iterdir()) == []


def test_the_words_of_a_catalog_that_refuses_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_text("no database, but text that is long enough to be a header")
    with pytest.raises(SourceError, match=r"catalog: .*catalog.sqlite: "):
        CatalogView(options(path=f"file://{tmp_path}", catalog="sqlite:"))


def test_a_folder_without_a_backup_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"path: file://{tmp_path} has no backup"):
        BackupView(options(path=f"file://{tmp_path}"))
