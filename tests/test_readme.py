"""The documents name files that exist, and csrc/README.md names every kernel file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dash
from bench import support

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "csrc/*.md", "bench/*.md", "docs/**/*.md", "third_party/*.md")
    for path in ROOT.glob(pattern)
)
SOURCE_NAME = re.compile(r"`((?:[a-z0-9_]+/)*[a-z0-9_]+\.(?:hpp|cuh|cu|cpp|py))`")


def source_names(text: str) -> set[str]:
    """File names written in backquotes."""
    return set(SOURCE_NAME.findall(text))


@pytest.mark.parametrize("folder", ["fwd", "bwd"])
def test_csrc_readme_names_every_kernel_file(folder: str) -> None:
    named = source_names((ROOT / "csrc" / "README.md").read_text())
    present = {
        path.relative_to(ROOT / "csrc").as_posix() for path in (ROOT / "csrc" / folder).iterdir()
    }
    assert present - named == set(), "files that csrc/README.md does not name"


def test_csrc_readme_names_only_existing_files() -> None:
    named = source_names((ROOT / "csrc" / "README.md").read_text())
    assert named, "csrc/README.md names no file"
    missing = {
        name
        for name in named
        if not (ROOT / "csrc" / name).is_file() and not (ROOT / name).is_file()
    }
    assert missing == set(), "files that csrc/README.md names and that do not exist"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_names_exist(document: Path) -> None:
    """Relative links resolve, and a path in backquotes below a known folder exists."""
    text = document.read_text()
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    folders = ("csrc/", "dash/", "tests/", "bench/", "docs/")
    missing += [
        name
        for name in source_names(text)
        if name.startswith(folders) and not (ROOT / name).is_file()
    ]
    assert missing == [], f"{document.relative_to(ROOT)} names files that do not exist"


def test_the_support_table_is_what_the_code_says() -> None:
    assert support.table() in (ROOT / "README.md").read_text(), (
        "run python -m bench.support --write README.md"
    )


@pytest.mark.parametrize("row", support.rows(), ids=lambda row: row.feature)
def test_is_supported_agrees_with_the_table(row: support.Row) -> None:
    assert row.yes
    for call in row.yes:
        assert dash.is_supported(**call) == (True, ""), call
    for call in row.no:
        ok, reason = dash.is_supported(**call)
        assert not ok and reason, call
