"""Every .hpp compiles alone under g++, and a second compiler run of the policies agrees."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dash import _schedule
from dash.schedule import dispatch, walks

from .oracle import MASKS, legal_schedules, some_window

ROOT = Path(__file__).resolve().parents[2]
CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
HEADERS = sorted((ROOT / "csrc").rglob("*.hpp"))
KINDS = [  # the values of ScheduleKind
    *["unordered", "ascending", "shortest_first", "band", "descending", "shift"],
    *["symmetric_shift", "mirrored", "comb", "ring"],
]

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")


def cuda_include() -> str | None:
    """A CUDA toolkit's include folder: csrc/api names streams and launches."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)
    for home in filter(None, homes):
        if (Path(home) / "include/cuda_runtime_api.h").is_file():
            return f"{home}/include"
    return None


def compile_alone(headers: list[Path], flags: list[str]) -> None:
    command = [CXX, "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", "-x", "c++"]
    done = subprocess.run(
        [*command, f"-I{ROOT / 'csrc'}", *flags, *map(str, headers)], capture_output=True, text=True
    )
    lines = [line for line in done.stderr.splitlines() if "#pragma once in main file" not in line]
    assert done.returncode == 0, "\n".join(lines)


def test_every_header_compiles_alone() -> None:
    plain = [path for path in HEADERS if path.parent.name != "api"]
    assert len(plain) >= 12
    compile_alone(plain, [])


def test_kernels_have_the_policies_of_their_variant() -> None:
    compile_alone([ROOT / "tests/schedule/kernel_policies.cpp"], [])


def test_workspaces_have_room_for_their_parts() -> None:
    compile_alone([ROOT / "tests/schedule/workspace.cpp"], [])


def test_an_action_is_done_once_on_each_device(tmp_path: Path) -> None:
    source, binary = ROOT / "tests/schedule/once_per_device.cpp", tmp_path / "once_per_device"
    flags = ["-std=c++20", "-O1", "-pthread", f"-I{ROOT / 'csrc'}"]
    subprocess.run([CXX, *flags, str(source), "-o", str(binary)], check=True)
    assert subprocess.run([binary]).returncode == 0


def test_api_headers_compile_alone_with_torch() -> None:
    cuda = cuda_include()
    if cuda is None:
        pytest.skip("no CUDA toolkit: csrc/api includes cuda_runtime_api.h")
    torch_include = Path(torch.__file__).parent / "include"
    flags = [f"-isystem{torch_include}", f"-isystem{cuda}", "-fvisibility=hidden"]
    flags += ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DUSE_CUDA"]
    compile_alone([path for path in HEADERS if path.parent.name == "api"], flags)


def test_only_api_includes_torch_and_only_cuh_needs_cuda() -> None:
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix not in (".hpp", ".cuh", ".cu", ".cpp") or path.parent.name == "api":
            continue
        text = path.read_text()
        names = re.findall(r'^#include [<"](.+)[>"]', text, re.MULTILINE)
        assert not [name for name in names if name.startswith(("torch/", "ATen/", "c10/"))], path
        if path.suffix in (".hpp", ".cpp"):
            plain = re.sub(r"#if defined\(__CUDACC__\).*", "", text, flags=re.DOTALL)
            names = re.findall(r'^#include [<"](.+)[>"]', plain, re.MULTILINE)
            assert not [n for n in names if n.startswith(("cute/", "cutlass/", "cuda"))], path


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("probe") / "probe"
    source = ROOT / "tests/schedule/probe.cpp"
    subprocess.run(
        [CXX, "-std=c++20", "-O1", f"-I{ROOT / 'csrc'}", str(source), "-o", str(binary)], check=True
    )
    return binary


def test_a_compiled_probe_agrees_with_the_extension(probe: Path) -> None:
    generator = random.Random(0)
    grids = []
    for mask in MASKS:
        for name in legal_schedules(mask):
            for _ in range(40):
                lengths = generator.randrange(0, 2000), generator.randrange(0, 2000)
                tiles = generator.choice([(64, 128), (80, 128), (128, 128), (7, 5)])
                heads, batch = generator.randrange(1, 6), generator.randrange(1, 4)
                section = generator.randrange(1, 9)
                if name == "symmetric_shift":
                    lengths = lengths[:1] * 2
                window = some_window(mask, generator, *lengths)
                grid = _schedule.TileGrid(*lengths, *tiles, heads, batch, window, name, section)
                if _schedule.is_legal(grid):
                    grids.append(grid)
    lines = [
        f"{g.seqlen_q} {g.seqlen_k} {g.block_m} {g.block_n} {g.num_heads} {g.batch} "
        f"{g.window[0]} {g.window[1]} {KINDS.index(g.schedule)} {g.section}"
        for g in grids
    ]
    done = subprocess.run([probe], input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0
    answers = done.stdout.splitlines()
    assert len(answers) == len(grids)
    for grid, answer in zip(grids, answers, strict=True):
        tickets = "".join(f"{n},{h},{b} " for n, h, b in dispatch(grid))
        heads = range(min(grid.num_heads, 2))
        walks_of_heads = [walk for bidh in heads for walk in walks(grid, bidh)]
        visits = "".join("".join(f" {m}:{t}" for m, t in walk) + ";" for walk in walks_of_heads)
        assert answer == f"{tickets}|{visits}"
