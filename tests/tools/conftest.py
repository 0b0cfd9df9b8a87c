"""The project every tool test works in; see series_project.py."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from series_project import (  # noqa: E402
    REPOSITORY,
    SHA256,
    Project,
    commit_entries,
    git,
    make_base,
    write,
)


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """The project every test gets a copy of; its scripts are compiled once."""
    root = tmp_path_factory.mktemp("template") / "project"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "scripts", root / "scripts", ignore=ignore)
    project = Project(root, root.parent / "home")
    commit_id = make_base(project.base)
    write(
        root,
        "UPSTREAM",
        f"# a test\npackage=uc-manager\nversion=0.0.1\nsha256={SHA256}\n"
        f"commit={commit_id}\n",
    )
    project.patches.mkdir()
    project.overlay.mkdir()
    ucm = project.clone()
    commit_entries(ucm)
    project.ok("refresh", "--ucm", ucm, "--base", commit_id)
    write(root, ".gitignore", "/build/\n__pycache__/\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "project")
    for tool in ("unapply", "status", "verify"):
        project.run(tool, "--help")
    project.clone("clean")
    project.clone("applied")
    project.ok("apply", "--ucm", root.parent / "applied")
    return root


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    shutil.copytree(template, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project", tmp_path / "home", template.parent)
