"""Where a child process finds its modules: never in its current directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import router
from router.supervision.worker_process import PACKAGE_ROOT, import_environment, module_command


def test_a_module_command_does_not_import_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "this.py").write_text('print("from the current directory")')
    ran = subprocess.run(module_command("this"), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "The Zen of Python" in ran.stdout


def test_the_root_of_the_packages_is_the_folder_that_holds_them() -> None:
    assert router.__file__ is not None
    assert Path(PACKAGE_ROOT) == Path(router.__file__).parents[1]


def test_installed_packages_need_no_more_than_the_environment() -> None:
    given = {"PYTHONPATH": "/opt/more", "HOME": "/root"}
    for path in (["/venv/bin", "/venv/lib"], ["/venv/bin", PACKAGE_ROOT], [PACKAGE_ROOT, PACKAGE_ROOT]):
        assert import_environment(given, path) == given


def test_a_source_tree_that_is_run_in_place_is_passed_on() -> None:
    path = [PACKAGE_ROOT, "/venv/lib"]
    assert import_environment({}, path) == {"PYTHONPATH": PACKAGE_ROOT}
    assert import_environment({"PYTHONPATH": "/a"}, path) == {"PYTHONPATH": f"{PACKAGE_ROOT}:/a"}
