"""Arrays of other libraries on a GPU: streams, memory and lifetimes, on the recording driver."""

from __future__ import annotations

import pytest

from tests.unit.conftest import Run

# A program of one kernel on device 0, called on an array of a made-up library that works on the
# stream STREAM. `IMMUTABLE` ones have no __setitem__.
_SCRIPT = """
import gc, sys, types, weakref

class Struct(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
                ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

capsules = ctypes.pythonapi
capsules.PyCapsule_New.restype = ctypes.py_object
capsules.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsules.PyCapsule_GetPointer.restype = ctypes.c_void_p
capsules.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
asked = []
dropped = []
note_dropped = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda capsule: dropped.append(True))

class Made:
    '''What from_dlpack gives: it keeps the capsule, so the memory goes with it.'''
    def __init__(self, capsule):
        self.capsule = capsule
        self.data = Struct.from_address(capsules.PyCapsule_GetPointer(capsule, b"dltensor")).data

class Space:
    uint8 = "uint8"
    @staticmethod
    def from_dlpack(array):
        assert array.__dlpack_device__() == (2, 0)
        return Made(array.__dlpack__(stream=STREAM))
    @staticmethod
    def empty(size, dtype):
        assert dtype == "uint8"
        asked.append(f"empty {size} in {fake().fake_current():x}")
        return Array(0x900000)

class Immutable:
    space = Space()
    def __init__(self, address):
        self.shape = (ctypes.c_int64 * 2)(16, 256)
        self.struct = Struct(address, 2, 0, 2, 2, 32, 1, self.shape, None, 0, None, None)
    def __array_namespace__(self):
        return self.space
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, stream=None):
        asked.append(f"ordered for {stream:x}")
        destructor = ctypes.cast(note_dropped, ctypes.c_void_p)
        return capsules.PyCapsule_New(ctypes.addressof(self.struct), b"dltensor", destructor)

class Array(Immutable):
    def __setitem__(self, index, value):
        raise AssertionError

def program(*_):
    made = _ext.Program(2, 0, 1)
    target = made.add_buffer(2, 32, [16, 256], [256, 1])
    made.launch_cuda(kernel(), GRID, BLOCK, 0, [("pointer", target, 0), ("i32", 7), ("f64", 2.5)])
    made.add_output(target)
    return made

executor = _ext.ExecutorCache(program, [])
executor.execute([KIND(0x800000)])
fake().fake_finish()
gc.collect()
fake().fake_clear()
asked.clear()
(made,) = executor.execute([KIND(0x800000)])
calls = [line.split(" args")[0].split(" block")[0] for line in log() if "set " not in line]
"""


def _script(kind: str, stream: int, then: str) -> str:
    return f"STREAM = {stream}\n" + _SCRIPT.replace("KIND", kind) + then


def test_library_of_mutable_arrays_allocates_and_names_its_stream(run: Run) -> None:
    said = run(_script("Array", 0x55, "say([asked, calls, made.data])"))
    asked, calls, data = said
    # The input is made ready for the stream that the library works on, the buffer is its own.
    assert asked == ["ordered for 55", "empty 16384 in 1000", "ordered for -1"]
    assert [line for line in calls if not line.startswith("launch")] == []
    assert data == 0x900000


@pytest.mark.parametrize("stream", [0x55, 1])
def test_memory_of_immutable_arrays_comes_in_stream_order(run: Run, stream: int) -> None:
    then = """
data = made.data
del made
gc.collect()
say([asked, calls, log()[-1], data])
"""
    asked, calls, last, data = run(_script("Immutable", stream, then))
    assert asked == [f"ordered for {stream:x}"]
    assert calls[0] == f"allocate 16384 in 1000 on {stream:x}"
    assert calls[1].startswith("launch")
    assert calls[2:] == [f"call after {stream:x}"]
    assert last == f"free {data:x} on {stream:x}"


@pytest.mark.parametrize(("kind", "drops"), [("Immutable", [0, 1]), ("Array", [2, 2])])
def test_input_lives_until_a_stream_that_its_library_does_not_know_is_done(
    run: Run, kind: str, drops: list[int]
) -> None:
    # A library that allocates in the order of the very stream may have the input's memory back at
    # once (and the buffer's description); another would hand it to work on a stream of its own.
    then = """
inputs = [KIND(0x700000)]
fake().fake_finish()
for _ in range(100):
    pass
dropped.clear()
executor.execute(inputs)
at_once = len(dropped)
fake().fake_finish()
for _ in range(100):
    pass  # Python runs what other threads left for it between its instructions
say([at_once, len(dropped)])
"""
    assert run(_script(kind, 0x55, then.replace("KIND", kind))) == drops


def test_capture_into_a_graph_queues_no_host_function(run: Run) -> None:
    _, calls, _ = run(_script("Immutable", 0x55, "say([asked, calls, made.data])"), FAKE_CAPTURE=1)
    assert [line.split()[0] for line in calls] == ["allocate", "launch"]


def test_other_consumer_waits_for_the_stream(run: Run) -> None:
    then = """
fake().fake_clear()
class Other(Space):
    @staticmethod
    def from_dlpack(array):
        # The first time it is asked for its stream; then it takes the tensor on another one.
        Other.count += 1
        return Made(array.__dlpack__(stream=0x55 if Other.count == 1 else 0x66))
    count = 0
class Wanderer(Immutable):
    space = Other()
executor.execute([Wanderer(0x800000)])
say([line for line in log() if line.startswith(("record", "wait"))])
"""
    assert run(_script("Immutable", 0x55, then)) == ["record on 55", "wait on 66"]
