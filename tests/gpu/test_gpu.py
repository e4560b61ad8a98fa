"""Runs every GPU check in child processes; see workers.py. The checks of one run start together,
and each test waits for its own; --junitxml has each check's own seconds and notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import all_checks, registry  # noqa: F401
from .pretend import PRETEND
from .workers import Child, Outcome, Workers, default_workers


@pytest.fixture(scope="module")
def workers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    """Runs the checks that were selected."""
    selected = {
        item.callspec.params["name"]
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_on_the_gpu"
    }
    checks = {name: check for name, check in registry.CHECKS.items() if name in selected}
    running = Workers(checks, tmp_path_factory.mktemp("gpu"), default_workers())
    yield running
    running.stop()


def test_hangs_and_crashes_are_found_and_the_next_check_runs(tmp_path: Path) -> None:
    """The child itself, without a GPU."""
    child = Child(tmp_path / "stderr.txt")

    def outcome(name: str) -> Outcome:
        return child.run(name, PRETEND[name].limit_s)

    try:
        assert outcome("pretend/passes").error == ""
        assert "this check fails" in outcome("pretend/fails").error
        assert "did not end within 2 s: a hang" in outcome("pretend/hangs").error
        assert outcome("pretend/passes").error == ""
        assert "ended the child, status -6" in outcome("pretend/crashes").error
        assert outcome("pretend/skips").skipped == "this check cannot run here"
        assert outcome("pretend/says").notes == ("what a check has to say",)
        assert outcome("pretend/passes").notes == ()
    finally:
        child.stop()


def test_children_work_at_once_and_those_alone_last(tmp_path: Path) -> None:
    names = ["pretend/waits-alone", "pretend/waits", "pretend/waits-too", "pretend/crashes"]
    workers = Workers({name: PRETEND[name] for name in names}, tmp_path, count=2)
    try:
        finished: list[str] = []
        for name, result in workers.results.items():
            result.add_done_callback(lambda _, name=name: finished.append(name))
        outcomes = {name: result.result(timeout=240) for name, result in workers.results.items()}
    finally:
        workers.stop()
    assert finished[-1] == "pretend/waits-alone"
    assert "ended the child" in outcomes["pretend/crashes"].error
    for name in names[:3]:
        assert outcomes[name].error == "" and 1.0 <= outcomes[name].seconds < 5.0, name


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(registry.CHECKS))
def test_on_the_gpu(name: str, workers: Workers, record_property) -> None:
    outcome = workers.results[name].result(timeout=1800)
    record_property("seconds", outcome.seconds)
    for note in outcome.notes:
        record_property("note", note)
    if outcome.skipped:
        pytest.skip(outcome.skipped)
    if outcome.error:
        pytest.fail(f"{name}\n{outcome.error}", pytrace=False)
