"""Makes the virtual environment that the Makefile works in, and installs what is missing there.

    python .ci/make_venv.py VENV [EXTRA ...]

Needs the standard library only. If the calling interpreter already has torch >= 2.14, the
environment sees its packages; what is there is never downloaded again, so that a GPU machine
without a network works. EXTRA names further requirement groups: "lint", "plot".
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CUTLASS = "nvidia-cutlass==4.2.0.0"
# name: (minimum, end) of the versions that serve
REQUIREMENTS = {
    "setuptools": ((77,), (82,)),
    "packaging": ((0,), None),
    "ninja": ((0,), None),
    "pybind11": ((2, 13), None),
    "torch": ((2, 14), None),
    "numpy": ((0,), None),
    "pytest": ((8,), None),
    "hypothesis": ((6,), None),
}
GROUPS = {
    "lint": {"ruff": ((0, 17), None)},
    "plot": {"rich": ((13,), None), "matplotlib": ((3, 8), None)},
}


def version_of(name: str) -> tuple[int, ...] | None:
    """Leading numbers of the installed version, None if it is not installed or not importable."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", version).group().split("."))


def serves(name: str, bounds: tuple) -> bool:
    """Whether what is installed is within the bounds; a ninja on PATH serves for the package."""
    if name == "ninja" and shutil.which("ninja"):
        return True
    version = version_of(name)
    least, end = bounds
    return version is not None and version >= least and (end is None or version < end)


def toolkit_major() -> int | None:
    """Major version of the CUDA toolkit that setup.py would find, None without one."""
    homes = [home for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    usual = ["/usr/local/cuda", *map(str, sorted(Path("/usr/local").glob("cuda-*"))[::-1])]
    places = [*(f"{home}/bin/nvcc" for home in homes), "nvcc", *(f"{x}/bin/nvcc" for x in usual)]
    nvcc = next((found for place in places if (found := shutil.which(place))), None)
    if nvcc is None:
        return None
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+)\.", said)
    return int(found.group(1)) if found else None


def has_cutlass() -> bool:
    """Whether the build will find a CUTLASS without another download."""
    named = any(os.environ.get(n) for n in ("DASH_CUTLASS_DIR", "CUTLASS_DIR", "CUTLASS_PATH"))
    populated = (ROOT / "third_party/cutlass/include").exists()
    return named or populated or importlib.util.find_spec("cutlass_library") is not None


def missing(groups: list[str]) -> list[str]:
    """Requirements, as pip takes them, that this interpreter cannot serve."""
    wanted = dict(REQUIREMENTS)
    for group in groups:
        wanted |= GROUPS[group]
    found = []
    for name, (least, end) in wanted.items():
        if serves(name, (least, end)):
            continue
        upper = f",<{'.'.join(map(str, end))}" if end else ""
        requirement = f"{name}>={'.'.join(map(str, least))}{upper}"
        if name == "torch" and toolkit_major() == 12:
            requirement = "torch>=2.10,<2.11"  # the last whose default build is for CUDA 12
        found.append(requirement)
    return found


def create(venv: Path) -> None:
    """A virtual environment; one that sees this interpreter's packages if they include torch."""
    has_torch = serves("torch", REQUIREMENTS["torch"])
    flags = ["--system-site-packages"] if has_torch else []
    subprocess.run([sys.executable, "-m", "venv", *flags, str(venv)], check=True)
    if has_torch:
        # An interpreter that is itself in an environment has more than the system's packages.
        paths = [path for path in sys.path if path.endswith("-packages")]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = venv / "lib" / version / "site-packages"
        (site / "parent_environment.pth").write_text("\n".join(paths) + "\n")


def main(arguments: list[str]) -> None:
    """Creates the environment if it is not there and installs what it lacks."""
    venv, groups = Path(arguments[0]), arguments[1:]
    if arguments[0] == "--missing":
        print(json.dumps({"packages": missing(groups), "cutlass": has_cutlass()}))
        return
    python = venv / "bin/python"
    if not python.exists():
        create(venv)
    said = subprocess.run(
        [python, __file__, "--missing", *groups], check=True, capture_output=True, text=True
    )
    lacks = json.loads(said.stdout)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if lacks["packages"]:
        subprocess.run([*pip, *lacks["packages"]], check=True)
    if not lacks["cutlass"] and toolkit_major() and os.environ.get("DASH_SKIP_CUDA") != "1":
        subprocess.run([*pip, "--no-deps", CUTLASS], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
