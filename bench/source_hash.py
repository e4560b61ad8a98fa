"""Fingerprint of the sources that a GPU report speaks about.

`python -m bench.source_hash` prints it. Git's list of tracked files and a walk over a checkout
without git (an unpacked archive) give the same value: both take only the kinds of files that are
sources, so build products never count.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

SOURCE_FOLDERS = ("csrc", "dash")
SOURCE_SUFFIXES = frozenset({".py", ".hpp", ".cuh", ".cu", ".cpp", ".md"})
SKIPPED_FOLDERS = frozenset({"__pycache__", "build"})


def is_source(path: Path) -> bool:
    """True if a path (relative to the repository root) counts."""
    return (
        path.suffix in SOURCE_SUFFIXES
        and path.parts[0] in SOURCE_FOLDERS
        and SKIPPED_FOLDERS.isdisjoint(path.parts)
    )


def tracked_files(root: Path) -> list[Path] | None:
    """Files below the source folders that git tracks, or would if they were added (a working tree
    may be ahead of its index), relative to `root`; None if there are none."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    command += ["--", *SOURCE_FOLDERS]
    try:
        listing = subprocess.run(command, capture_output=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return [Path(name) for name in listing.decode().split("\0") if name] or None


def walked_files(root: Path) -> list[Path]:
    """Files below the source folders, relative to `root`."""
    return [
        path.relative_to(root)
        for folder in SOURCE_FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file()
    ]


def source_files(root: Path) -> list[Path]:
    """The files that count, relative to `root`, sorted by name."""
    tracked = tracked_files(root)
    files = walked_files(root) if tracked is None else tracked
    return sorted(
        (path for path in files if is_source(path) and (root / path).is_file()),
        key=lambda path: path.as_posix(),
    )


def source_hash(root: Path) -> str:
    """sha256 over names and contents of the sources below csrc/ and dash/."""
    digest = hashlib.sha256()
    for path in source_files(root):
        content = (root / path).read_bytes()
        digest.update(f"{path.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    print(source_hash(Path(__file__).resolve().parents[1]))
