"""Seeds, threads, and the reason why GPU tests are skipped."""

from __future__ import annotations

import pytest
import torch

from dash import _arguments


def pytest_configure(config: pytest.Config) -> None:
    # Tiles are small: more threads only wait for each other.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = _arguments.device_problem(torch.device("cuda"))
    if problem:
        skip = pytest.mark.skip(reason=f"no Hopper GPU with kernels: {problem}")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
