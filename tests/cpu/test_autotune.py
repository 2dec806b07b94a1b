"""`autotune`: which schedule wins, where that is kept, and that trial runs leave no trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fuser_direct
from fuser_direct import CompileError, DataType, FusionDefinition, _ext
from fuser_direct.compiler import trial, tuned
from fuser_direct.compiler.targets import CpuTarget


class FakeTimer:
    """Stands in for `trial.times_us`: runs everything, and says that candidate `winner` is the
    fastest.
    """

    def __init__(self) -> None:
        self.winner = -1
        self.asked: list[int] = []

    def __call__(self, runs: Sequence[trial.Run], device: Any, l2_bytes: int) -> list[float]:
        for run in runs:
            run()
        self.asked.append(len(runs))
        times = [10.0] * len(runs)
        times[self.winner] = 5.0
        return times


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeTimer]:
    fake = FakeTimer()
    monkeypatch.setattr(trial, "times_us", fake)
    monkeypatch.setenv("FUSER_DIRECT_CACHE", "1")
    monkeypatch.setenv("FUSER_DIRECT_CACHE_DIR", str(tmp_path))
    tuned.WINNERS.clear()
    yield fake
    tuned.WINNERS.clear()


def _pointwise() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True, DataType.Float)
        fd.add_output(fd.ops.mul(fd.ops.sin(x), 3.25))
    return fd


def _reason(fd: FusionDefinition) -> str:
    (kernel,) = fd.fec.kernels()
    assert kernel.scheduled is not None
    return kernel.scheduled.reason


def test_it_is_off_unless_asked_for(timer: FakeTimer) -> None:
    fd = _pointwise()
    fd.execute([torch.rand(40, 50)])
    with fuser_direct.autotune(), fuser_direct.autotune(enabled=False):
        fd.execute([torch.rand(60, 70)])
    assert timer.asked == []
    assert "tuned" not in _reason(fd)


@pytest.mark.parametrize("winner", [0, 1, -1])
def test_the_fastest_candidate_runs_and_says_so(timer: FakeTimer, winner: int) -> None:
    timer.winner = winner
    fd, x = _pointwise(), torch.rand(40, 50)
    with fuser_direct.autotune():
        (y,) = fd.execute([x])
    torch.testing.assert_close(y, x.sin() * 3.25)
    (count,) = timer.asked
    assert count > 2
    expected = "the choice is the fastest" if winner == 0 else r"\w+ \S+ instead of \S+"
    assert re.search(rf"tuned among {count} candidates: {expected}", _reason(fd))
    # Its program serves later calls, in and out of the context.
    fd.execute([x])
    assert len(timer.asked) == 1


def test_a_small_gain_changes_nothing(timer: FakeTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "times_us", lambda runs, *_: [10.0, *[9.9] * (len(runs) - 1)])
    fd = _pointwise()
    with fuser_direct.autotune():
        fd.execute([torch.rand(40, 50)])
    assert "the choice is the fastest" in _reason(fd)


def test_one_call_can_ask_for_it(timer: FakeTimer) -> None:
    fd = _pointwise()
    fd.execute([torch.rand(40, 50)], _enable_options=["autotune"])
    assert len(timer.asked) == 1
    assert "tuned" in _reason(fd)


def test_winners_are_kept_in_the_process_and_on_disk(timer: FakeTimer, tmp_path: Path) -> None:
    with fuser_direct.autotune():
        _pointwise().execute([torch.rand(40, 50)])
        first = len(timer.asked)
        # The same kind of kernel, about as large.
        _pointwise().execute([torch.rand(41, 49)])
        assert len(timer.asked) == first
        # As in a new process.
        tuned.WINNERS.clear()
        fd = _pointwise()
        fd.execute([torch.rand(42, 48)])
        assert len(timer.asked) == first
        assert "tuned" in _reason(fd)
        _pointwise().execute([torch.rand(400, 50)])
        assert len(timer.asked) == first + 1
    # Without the context nothing of it is used.
    fd = _pointwise()
    fd.execute([torch.rand(43, 53)])
    assert "tuned" not in _reason(fd)


@pytest.mark.parametrize("damage", ["flipped", "cut", "other"])
def test_a_damaged_record_is_made_anew(timer: FakeTimer, tmp_path: Path, damage: str) -> None:
    with fuser_direct.autotune():
        _pointwise().execute([torch.rand(40, 50)])
        # A winner is 32 bytes; nothing else here is so small.
        (record,) = [p for p in tmp_path.rglob("*.entry") if p.stat().st_size < 200]
        data = bytearray(record.read_bytes())
        if damage == "flipped":
            data[-1] ^= 1
        record.write_bytes(data[:-5] if damage == "cut" else data)
        tuned.WINNERS.clear()
        if damage == "other":
            # Whole, but of a schedule that isn't among the candidates.
            (key,) = [bytes.fromhex(record.name.removesuffix(".entry"))]
            tuned.WINNERS.put(key, b"x" * 32)
        fd, x = _pointwise(), torch.rand(41, 49)
        (y,) = fd.execute([x])
    torch.testing.assert_close(y, x.sin() * 3.25)
    assert len(timer.asked) == 2
    assert "tuned" in _reason(fd)


def _in_place(fd: FusionDefinition, x: Any) -> None:
    fd.add_output(fd.ops.add(x, 1.0), alias_input=x)


@pytest.mark.parametrize("kind", ["torch", "numpy", "strided"])
def test_what_is_written_in_place_is_written_once(timer: FakeTimer, kind: str) -> None:
    memory = torch.arange(240.0).reshape(12, 20)
    expected = memory.clone()
    x: Any = memory
    if kind == "strided":
        x, written = memory[:, 2:17], expected[:, 2:17]
    else:
        x, written = (memory.numpy() if kind == "numpy" else memory), expected
    written += 1
    with FusionDefinition() as fd:
        _in_place(fd, fd.from_pytorch(x))
    with fuser_direct.autotune():
        fd.execute([x])
    assert len(timer.asked) == 1
    assert torch.equal(memory, expected)


def test_random_numbers_advance_once(timer: FakeTimer) -> None:
    def draw(is_on: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], True, DataType.Float)
            low, high = fd.define_scalar(0.0), fd.define_scalar(1.0)
            noise = fd.ops.uniform(low, high, [4, 8], dtype=DataType.Float)
            fd.add_output(fd.ops.add(x, noise))
        torch.manual_seed(7)
        with fuser_direct.autotune(enabled=is_on):
            (y,) = fd.execute([torch.zeros(4, 8)])
        return y, torch.rand(3)

    plain, tuned_ = draw(False), draw(True)
    assert timer.asked
    for a, b in zip(plain, tuned_, strict=True):
        assert torch.equal(a, b)


def _several(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, -1], True, DataType.Float)
    product = fd.ops.matmul(fd.ops.exp(x), fd.ops.permute(x, [1, 0]))
    fd.add_output(fd.ops.div(product, fd.ops.sum(product, [1], keepdim=True)))
    fd.add_output(fd.ops.sum(x, [0]))


@pytest.mark.parametrize("winner", range(0, 6, 2))
def test_every_kernel_of_a_program_is_tuned_and_right(
    timer: FakeTimer, winner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer.winner = -1 - winner

    def short(runs: Sequence[trial.Run], *_: Any) -> list[float]:
        timer.winner = max(timer.winner, -len(runs))
        return timer(runs, None, 0)

    monkeypatch.setattr(trial, "times_us", short)
    with FusionDefinition() as fd:
        _several(fd)
    x = torch.rand(33, 48)
    with fuser_direct.autotune():
        share, total = fd.execute([x])
    assert len(timer.asked) >= 2
    product = x.double().exp() @ x.double().T
    torch.testing.assert_close(share.double(), product / product.sum(1, True), rtol=1e-5, atol=0)
    torch.testing.assert_close(total.double(), x.double().sum(0), rtol=1e-5, atol=0)


def test_a_candidate_that_cannot_be_built_is_none(
    timer: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_ = CpuTarget.compile
    blocks: list[int] = []

    def failing(self: CpuTarget, item: Any) -> Any:
        blocks.append(item.schedule.block)
        if item.schedule.block != blocks[0]:
            raise CompileError("no room")
        return compile_(self, item)

    def scaled(row: str) -> FusionDefinition:
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], True, DataType.Float)
            fd.add_output(fd.ops.mul(getattr(fd.ops, row)(x), 7.75))
        return fd

    monkeypatch.setattr(CpuTarget, "compile", failing)
    x = torch.rand(40, 50)
    # Candidates are built by several threads; the block that can be is known before.
    scaled("sin").execute([x])
    fd = scaled("cos")
    with fuser_direct.autotune():
        (y,) = fd.execute([x])
    torch.testing.assert_close(y, x.cos() * 7.75)
    assert timer.asked
    assert timer.asked[0] < len(set(blocks)) * 2
    assert "block" not in _reason(fd).partition("tuned")[2]


def test_explain_shows_what_was_tuned(timer: FakeTimer) -> None:
    fd, x = _pointwise(), torch.rand(40, 50)
    assert "tuned" not in fuser_direct.explain(_pointwise(), [x])
    with fuser_direct.autotune():
        fd.execute([x])
        assert "tuned among" in fuser_direct.explain(_pointwise(), [x])
    assert "tuned" not in fuser_direct.explain(_pointwise(), [x])


def test_the_wall_clock_measures_each_run_by_turns() -> None:
    order: list[int] = []
    times = trial.times_us([lambda: order.append(0), lambda: order.append(1)], (1, 0), 0)
    assert len(times) == 2
    assert all(time >= 0 for time in times)
    turns = order[4:]
    assert turns == [0, 1] * (len(turns) // 2)
    assert len(turns) >= 6


def test_inputs_are_known_while_their_call_is_compiled_only() -> None:
    x, seen = torch.rand(3), []

    def note(args: Any, device: Any, options: Any) -> Any:
        seen.append(_ext.inputs_being_compiled())
        raise CompileError("enough")

    executor = _ext.ExecutorCache(note, [])
    with pytest.raises(CompileError):
        executor.execute([x, 2.5])
    assert seen[0][0] is x
    assert seen[0][1] == 2.5
    assert _ext.inputs_being_compiled() == []
