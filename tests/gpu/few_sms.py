"""Every policy on few SMs: sm_margin, another kernel on half of them, two calls at once."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import dash

from ..compare import assert_results_equal
from . import registry
from .problem import Problem, dense, legal, mask_of, packed, resolve, run

CAUSAL = (-1, 0)
PROBLEMS = {
    "full": dense(2, 1280, 1280, heads=6, heads_k=3, head_dim=128),
    "causal": dense(2, 1280, 1280, heads=6, heads_k=3, head_dim=128, window=CAUSAL),
    "window": dense(2, 1500, 1300, heads=6, heads_k=3, head_dim=64, window=(200, 50)),
    "packed": packed([700, 0, 1280, 33, 512], heads=8, head_dim=128, window=CAUSAL),
    "causal-hdim256": dense(2, 1024, 1024, heads=4, head_dim=256, window=CAUSAL),
}


def num_sms() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count


def check_fewer(name: str) -> None:
    """The same bits on all SMs, 114, 78, 40 and 1 for what claims it; no hang for what does not. A
    gang that does not fit is refused by name."""
    problem = PROBLEMS[name]
    inputs = problem.make_inputs()
    for schedule in legal(problem):
        claims = resolve(problem, schedule)
        want = run(problem, inputs, schedule)
        for sm_margin in (1, 18, 54, 92, 100, num_sms() - 1):
            if schedule not in legal(problem, sm_margin=sm_margin):
                check_refused(problem, inputs, schedule, sm_margin)
                continue
            got = run(problem, inputs, schedule, sm_margin=sm_margin)
            if claims.device_invariant:
                assert_results_equal(got, want, f"{schedule}, sm_margin {sm_margin}")
    for sm_margin in (1, 54, 100, num_sms() - 1):
        taken = resolve(problem, sm_margin=sm_margin).name
        got = run(problem, inputs, sm_margin=sm_margin)
        want = run(problem, inputs, taken)
        assert_results_equal(got, want, f"auto, {taken}, sm_margin {sm_margin}")


def check_refused(problem: Problem, inputs: tuple, schedule: str, sm_margin: int) -> None:
    with pytest.raises(RuntimeError, match=f"{schedule}.*SMs"):
        run(problem, inputs, schedule, sm_margin=sm_margin)
    with pytest.raises(ValueError, match=f"{schedule}.*SMs"):
        dash.resolve_schedule(
            **mask_of(problem), schedule=schedule, device="cuda", sm_margin=sm_margin
        )


class Occupied:
    """Holds SMs with a kernel that spins, until left or for `limit_s`."""

    def __init__(self, num_ctas: int, limit_s: float) -> None:
        self.flags = torch.zeros(2, dtype=torch.int32, device="cuda")
        self.stop = torch.ones(1, dtype=torch.int32).pin_memory()
        self.stream, self.control = torch.cuda.Stream(), torch.cuda.Stream()
        self.num_ctas, self.limit_s = num_ctas, limit_s

    def __enter__(self) -> Occupied:
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            torch.ops.dash_attn.occupy_sms(self.flags, self.num_ctas, int(self.limit_s * 1e6))
        while self.started < self.num_ctas and self.is_running:
            pass
        return self

    @property
    def started(self) -> int:
        with torch.cuda.stream(self.control):
            return int(self.flags.cpu()[1])

    @property
    def is_running(self) -> bool:
        return not self.stream.query()

    def __exit__(self, *_: object) -> None:
        with torch.cuda.stream(self.control):
            self.flags[:1].copy_(self.stop, non_blocking=True)
        self.stream.synchronize()


def check_occupied(name: str) -> None:
    """Half of the SMs are another kernel's: items that need none but their predecessors end beside
    it, and gangs at the latest after it; both with the bits of the free GPU."""
    problem = PROBLEMS[name]
    inputs = problem.make_inputs()
    call = torch.cuda.Stream()
    call.wait_stream(torch.cuda.current_stream())
    # First and on the same stream, so that while the GPU is occupied no kernel is loaded and
    # torch's allocator has what it needs.
    with torch.cuda.stream(call):
        want = {schedule: run(problem, inputs, schedule) for schedule in ("auto", *legal(problem))}
        run(problem, inputs)
    call.synchronize()
    is_gang = {
        schedule: schedule not in legal(problem, sm_margin=num_sms() - 1) for schedule in want
    }
    for schedule, expected in want.items():
        with Occupied(num_sms() // 2, 1.0) as occupied:
            started = occupied.started
            still = "still running" if occupied.is_running else "already ended"
            assert started == num_sms() // 2, f"{started} CTAs have started, {still}"
            call.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(call):
                got = run(problem, inputs, schedule)
            call.synchronize()
            ended_beside = occupied.is_running
        assert_results_equal(got, expected, f"{schedule} beside a kernel on half of the SMs")
        if schedule != "auto" and not is_gang[schedule]:
            assert ended_beside, f"{schedule} waited for the other kernel"
        when = "beside" if ended_beside else "after"
        registry.note(f"{name} {schedule}: ended {when} the other kernel")


def check_two_streams(name: str) -> None:
    """Two backwards at once, also of different gangs, on few SMs each."""
    problem = PROBLEMS[name]
    inputs = [problem.make_inputs(seed=seed) for seed in (0, 1)]
    streams = [torch.cuda.Stream() for _ in inputs]
    for schedule in ("auto", *legal(problem)):
        for sm_margin in (0, num_sms() // 2):
            if schedule not in ("auto", *legal(problem, sm_margin=sm_margin)):
                continue
            want = [run(problem, one, schedule, sm_margin=sm_margin) for one in inputs]
            torch.cuda.synchronize()
            for repeat in range(15):
                got = []
                for one, stream in zip(inputs, streams, strict=True):
                    with torch.cuda.stream(stream):
                        got.append(run(problem, one, schedule, sm_margin=sm_margin))
                torch.cuda.synchronize()
                for index in (0, 1):
                    what = f"{schedule}, sm_margin {sm_margin}, stream {index}, repeat {repeat}"
                    assert_results_equal(got[index], want[index], what)


for _name in PROBLEMS:
    registry.add(f"few-sms/margins-{_name}", partial(check_fewer, _name), 60)
    registry.add(f"few-sms/occupied-{_name}", partial(check_occupied, _name), 60, alone=True)
    registry.add(f"few-sms/two-streams-{_name}", partial(check_two_streams, _name), 60)
