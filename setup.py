"""Builds dash._schedule (g++ only, always) and dash._C (nvcc, sm_90a, if a CUDA toolkit is found).

Environment: DASH_SKIP_CUDA=1 leaves out _C; DASH_KERNELS selects kernels (csrc/instantiate.py);
DASH_DEBUG=1 compiles device-side checks; DASH_CUTLASS_DIR names a CUTLASS; DASH_IMPORT_NAME renames
the import package; MAX_JOBS and NVCC_THREADS as in torch. No download, no git, no timestamp.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "csrc"))
import instantiate  # noqa: E402

IMPORT_NAME = os.environ.get("DASH_IMPORT_NAME", "dash")
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "dash/__init__.py").read_text()).group(1)
IS_DEBUG = os.environ.get("DASH_DEBUG") == "1"
MIN_CUDA = (12, 6)
MIN_CUTLASS, END_CUTLASS = (4, 2), (5, 0)
BUILD_COMMANDS = {"build", "build_ext", "bdist_wheel", "editable_wheel", "install", "develop"}

CUTLASS_HELP = """CUTLASS 4.2 or later, below 5, is needed. Any one of these helps:
  git submodule update --init third_party/cutlass
  pip install --no-deps nvidia-cutlass==4.2.0.0
  export DASH_CUTLASS_DIR=<a CUTLASS checkout>
or build without CUDA kernels: DASH_SKIP_CUDA=1"""


def find_cuda_home() -> str | None:
    """The CUDA toolkit's folder: CUDA_HOME or CUDA_PATH; else what nvcc says, because the nvcc on
    PATH may be a wrapper script elsewhere; else the usual places. Never asks for a GPU."""
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
        dry_run = [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"]
        said = subprocess.run(dry_run, capture_output=True, text=True)
        top = re.search(r"^#\$ TOP=(.+)$", said.stderr + said.stdout, re.MULTILINE)
        candidates += [top.group(1).strip() if top else None, str(Path(nvcc).resolve().parents[1])]
    candidates += ["/usr/local/cuda", *map(str, sorted(Path("/usr/local").glob("cuda-*"))[::-1])]
    for home in filter(None, candidates):
        if (Path(home) / "bin/nvcc").exists() and (Path(home) / "include/cuda.h").exists():
            return str(Path(home).resolve())
    return None


def cuda_version(cuda_home: str) -> tuple[int, int]:
    """(major, minor) of the toolkit."""
    said = subprocess.run([f"{cuda_home}/bin/nvcc", "--version"], capture_output=True, text=True)
    major, minor = re.search(r"release (\d+)\.(\d+)", said.stdout).groups()
    return int(major), int(minor)


def check_toolkit(cuda_home: str, torch_cuda: str) -> None:
    """Exits with the way out if the toolkit is too old or cannot serve this torch."""
    version = cuda_version(cuda_home)
    found = f"dash: the CUDA toolkit in {cuda_home} is {version[0]}.{version[1]}"
    way_out = "set CUDA_HOME to one that fits, or build without CUDA: DASH_SKIP_CUDA=1"
    if version < MIN_CUDA:
        sys.exit(f"{found}, 12.6 or later is needed; {way_out}")
    if version[0] != int(torch_cuda.split(".")[0]):
        sys.exit(
            f"{found}, the installed torch was built for CUDA {torch_cuda}, and the major versions "
            f"must agree; {way_out}; or install a torch that was built for CUDA {version[0]}"
        )


def check_torch_headers(torch_folder: Path, torch_version: str) -> None:
    """Exits with the way out if torch's stable headers cannot pass an operator's error on: with
    those of 2.11 a call that the operator refuses ended the process."""
    macros = torch_folder / "include/torch/csrc/stable/macros.h"
    if not macros.exists() or "STABLE_TORCH_ERROR_CODE_CHECK" not in macros.read_text():
        sys.exit(
            f"dash: the headers of torch {torch_version} are too old to build with. Build with "
            "torch 2.14 (what is built runs with 2.10 and later), or without CUDA: DASH_SKIP_CUDA=1"
        )


def find_cutlass() -> tuple[str, str]:
    """Include folder and version of CUTLASS: environment, then submodule, then installed package.
    Exits with the commands that help if there is none of a supported version."""
    names = ("DASH_CUTLASS_DIR", "CUTLASS_DIR", "CUTLASS_PATH")
    candidates = [Path(os.environ[name]) for name in names if os.environ.get(name)]
    candidates.append(ROOT / "third_party/cutlass")
    if spec := importlib.util.find_spec("cutlass_library"):
        candidates.append(Path(spec.submodule_search_locations[0]) / "source")
    for candidate in candidates:
        for include in (candidate / "include", candidate):
            header = include / "cutlass/version.h"
            if not header.exists():
                continue
            parts = re.findall(r"define CUTLASS_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text())
            if not MIN_CUTLASS <= tuple(map(int, parts[:2])) < END_CUTLASS:
                sys.exit(f"dash: the CUTLASS in {candidate} is {'.'.join(parts)}. {CUTLASS_HELP}")
            return str(include), ".".join(parts)
    sys.exit(f"dash: no CUTLASS found. {CUTLASS_HELP}")


def default_jobs() -> int:
    """Compile jobs for these cores and this memory, at about 4 GB a job."""
    meminfo = Path("/proc/meminfo")
    text = meminfo.read_text() if meminfo.exists() else ""
    available = re.search(r"MemAvailable:\s+(\d+) kB", text)
    by_memory = int(available.group(1)) // (4 << 20) if available else 1
    return max(1, min(len(os.sched_getaffinity(0)), by_memory))


def schedule_extension() -> Extension:
    """dash._schedule: pybind11 over the policy headers. No torch, no CUDA."""
    import pybind11

    return Extension(
        f"{IMPORT_NAME}._schedule",
        ["csrc/schedule/bindings.cpp"],
        include_dirs=[str(ROOT / "csrc"), pybind11.get_include()],
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden"],
        language="c++",
    )


def cuda_extension(cutlass_include: str, cutlass_text: str) -> Extension:
    """dash._C: kernels and operators. LibTorch stable ABI, no Python in it."""
    from torch.utils.cpp_extension import CUDAExtension

    out = ROOT / ("build/instantiations-debug" if IS_DEBUG else "build/instantiations")
    kernels = [str(path.relative_to(ROOT)) for path in instantiate.generate(out)]
    host = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/api/*.cpp"))
    device = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/selftest/*.cu"))
    release = ["-DDASH_DEBUG"] if IS_DEBUG else ["-DNDEBUG"]
    nvcc_flags = [
        *["-std=c++20", "-O3", *release, "--expt-relaxed-constexpr", "--expt-extended-lambda"],
        *["-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", "-DCUTLASS_ENABLE_GDC_FOR_SM90"],
        *["-gencode=arch=compute_90a,code=sm_90a", "-lineinfo", "-Xcompiler=-fvisibility=hidden"],
        "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL",  # csrc/api/tensor_map.cpp
        "-Xptxas=-v,--warn-on-spills,--warn-on-local-memory-usage",
        # torch's build rules turn the 16-bit operators off; CUTLASS uses them.
        *["-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__"],
        *["-U__CUDA_NO_HALF2_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__"],
    ]
    if threads := os.environ.get("NVCC_THREADS"):
        nvcc_flags.append(f"--threads={threads}")
    cxx_flags = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-DUSE_CUDA"]
    cxx_flags += ["-DTORCH_TARGET_VERSION=0x020a000000000000", f"-DDASH_VERSION={VERSION}"]
    cxx_flags += [f"-DDASH_CUTLASS_VERSION={cutlass_text}"]
    return CUDAExtension(
        f"{IMPORT_NAME}._C",
        [*host, *device, *kernels],
        include_dirs=[str(ROOT / "csrc"), str(out), cutlass_include],
        extra_compile_args={"cxx": cxx_flags, "nvcc": nvcc_flags},
        py_limited_api=True,
    )


def cuda_build() -> tuple[type[build_ext], list[Extension]]:
    """The build command and the CUDA extension; where CUDA is not wanted or not there, plain
    setuptools and none, with one line that says why."""
    if not BUILD_COMMANDS & set(sys.argv):
        return build_ext, []
    cuda_home = find_cuda_home()
    reason = "DASH_SKIP_CUDA=1" if os.environ.get("DASH_SKIP_CUDA") == "1" else None
    reason = reason or (None if cuda_home else "no nvcc found (set CUDA_HOME if there is one)")
    reason = reason or (None if importlib.util.find_spec("torch") else "torch is not installed")
    if reason is None:
        import torch

        reason = None if torch.version.cuda else "the installed torch has no CUDA"
    if reason:
        print(f"dash: building without CUDA kernels: {reason}", file=sys.stderr)
        return build_ext, []
    check_toolkit(cuda_home, torch.version.cuda)
    check_torch_headers(Path(torch.__file__).parent, torch.__version__)
    os.environ["CUDA_HOME"] = cuda_home  # read by cpp_extension when it is imported
    os.environ["PYTORCH_NVCC"] = f"{sys.executable} {ROOT / 'csrc/nvcc.py'}"
    os.environ.setdefault("MAX_JOBS", str(default_jobs()))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # for ninja
    from torch.utils.cpp_extension import BuildExtension

    class IncrementalBuild(BuildExtension):
        """One object folder for every way to build, so that ninja rebuilds only what changed."""

        def finalize_options(self) -> None:
            super().finalize_options()
            tag = f"{sys.implementation.cache_tag}-torch{torch.__version__}{'-debug' * IS_DEBUG}"
            self.build_temp = str(ROOT / "build" / f"objects-{tag}")

    return IncrementalBuild, [cuda_extension(*find_cutlass())]


for stale in ROOT.glob("build/lib*"):  # a wheel holds whatever lies there
    shutil.rmtree(stale)
build_command, cuda_extensions = cuda_build()
setup(
    version=VERSION,
    packages=[IMPORT_NAME, *(f"{IMPORT_NAME}.{name}" for name in find_packages("dash"))],
    package_dir={IMPORT_NAME: "dash"},
    ext_modules=[schedule_extension(), *cuda_extensions],
    cmdclass={"build_ext": build_command},
)
