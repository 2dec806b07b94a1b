"""The driver side of the executor against a driver that records calls; needs cc, and no GPU."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.unit.conftest import Run


def test_launch_passes_everything_to_the_driver(run: Run) -> None:
    log = run("kernel().launch(0, GRID, BLOCK, ARGS, shared_bytes=256, stream=0x55); say(log())")
    assert log[-1] == (
        "launch 1090 in 1000 grid 5,2,1 block 128,2,1 shared 256 stream 55 args abc 7 2.5"
    )


def test_cluster_is_passed_as_launch_attribute(run: Run) -> None:
    log = run("kernel().launch(0, (8, 1, 1), BLOCK, ARGS, cluster=4); say(log())")
    assert "attribute 4 of 4,1,1" in log[-1]
    assert not any(line.startswith("set") for line in log)


def test_early_launch_is_passed_where_device_and_driver_can(run: Run) -> None:
    log = run("kernel().launch(0, (8, 1, 1), BLOCK, ARGS, cluster=4, early=True); say(log())")
    assert "attribute 4 of 4,1,1 attribute 6 of 1,0,0" in log[-1]
    log = run("kernel().launch(0, GRID, BLOCK, ARGS, early=True); say(log())")
    assert "shared 0 stream 0 attribute 6 of 1,0,0" in log[-1]
    log = run("kernel().launch(1, GRID, BLOCK, ARGS, early=True); say(log())")
    assert "attribute" not in log[-1]
    log = run("kernel().launch(0, GRID, BLOCK, ARGS, early=True); say(log())", FAKE_VERSION=12020)
    assert "attribute" not in log[-1]


@pytest.mark.parametrize(("setting", "is_early"), [("0", False), ("1", True)])
def test_early_launch_can_be_switched_off(run: Run, setting: str, is_early: bool) -> None:
    script = "kernel().launch(0, GRID, BLOCK, ARGS, early=True); say(log())"
    log = run(script, FUSER_DIRECT_EARLY_LAUNCH=setting)
    assert ("attribute 6" in log[-1]) is is_early


def test_large_cluster_is_allowed_once(run: Run) -> None:
    log = run("""
        k = kernel()
        for _ in range(2):
            k.launch(0, (32, 1, 1), BLOCK, ARGS, cluster=16)
        say(log())""")
    assert log.count("set 14 to 1 on 0") == 1
    assert sum("attribute 4 of 16,1,1" in line for line in log) == 2


def test_shared_memory_is_raised_for_each_higher_demand_only(run: Run) -> None:
    log = run("""
        k = kernel()
        # 1024 bytes are static: 47 KB more fit without asking.
        for shared in (47 * 1024, 60000, 50000, 60000, 231424):
            k.launch(0, GRID, BLOCK, ARGS, shared_bytes=shared)
        say(log())""")
    assert [line for line in log if line.startswith("set")] == [
        "set 8 to 60000 on 0",
        "set 8 to 231424 on 0",
    ]


def test_image_is_loaded_once_and_served_to_each_device(run: Run) -> None:
    log = run("""
        k = kernel()
        for device in (0, 1, 0, 1):
            k.launch(device, GRID, BLOCK, ARGS)
        say(log())""")
    assert sum(line.startswith("load") for line in log) == 1
    assert [line.split(" grid")[0] for line in log if line.startswith("launch")] == [
        "launch 1090 in 1000",
        "launch 1091 in 1001",
    ] * 2


def test_loading_is_allowed_while_a_stream_is_captured(run: Run) -> None:
    log = run("kernel().load(0); say(log())")
    load = next(i for i, line in enumerate(log) if line.startswith("load"))
    assert log[load - 1] == "capture mode 2"  # relaxed
    assert log[load + 1] == "capture mode 0"  # as it was


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (
            "0, GRID, (1024, 1, 1), ARGS",
            "block of 1024 threads exceeds this kernel's 768 (sm_90, 64 registers)",
        ),
        (
            "0, GRID, (1 << 31, 4, 1), ARGS",
            "block of 8589934592 threads exceeds this kernel's 768 (sm_90, 64 registers)",
        ),
        ("0, GRID, (1, 1, 65), ARGS", "block z of 65 exceeds the device's 64 (sm_90)"),
        ("0, GRID, (32, 0, 1), ARGS", "block y is 0; use 1 or more"),
        ("0, (0, 1, 1), BLOCK, ARGS", "grid x is 0; use 1 or more"),
        (
            "0, (1 << 31, 1, 1), BLOCK, ARGS",
            "grid x of 2147483648 exceeds the device's 2147483647 (sm_90)",
        ),
        ("0, (1, 65536, 1), BLOCK, ARGS", "grid y of 65536 exceeds the device's 65535 (sm_90)"),
        ("0, (1, 1, 65536), BLOCK, ARGS", "grid z of 65536 exceeds the device's 65535 (sm_90)"),
        (
            "0, GRID, BLOCK, ARGS, 231425",
            "shared memory of 232449 bytes a block (1024 static) exceeds the device's 232448",
        ),
        (
            "1, GRID, BLOCK, ARGS, 231424",
            "shared memory of 232448 bytes a block (1024 static) exceeds the device's 166912",
        ),
        ("0, (6, 1, 1), BLOCK, ARGS, 0, 0, 4", "grid x of 6 is no multiple of the cluster's 4"),
        ("0, (34, 1, 1), BLOCK, ARGS, 0, 0, 17", "cluster of 17 blocks is out of range"),
        ("1, (8, 1, 1), BLOCK, ARGS, 0, 0, 2", "sm_80 has no clusters"),
    ],
)
def test_limit_is_named_and_nothing_is_launched(run: Run, launch: str, expected: str) -> None:
    message, log = run(f"""
        k = kernel()
        message = refusal(lambda: k.launch({launch}), LaunchError)
        say([message, log()])""")
    assert message.startswith("launch fused_0: ")
    assert expected in message
    assert not any(line.startswith(("launch", "set")) for line in log)


def test_current_context_is_restored(run: Run) -> None:
    seen = run("""
        k = kernel()
        k.load(0), k.load(1)
        seen = []
        for context in (0, 0x1000, 0x1001, 0xbeef):
            fake().fake_set_current(context)
            k.launch(1, GRID, BLOCK, ARGS)
            refusal(lambda: k.launch(1, (0, 0, 0), BLOCK, ARGS), LaunchError)
            seen.append([context, fake().fake_current()])
        say([seen, log()])""")
    states, log = seen
    assert all(before == after for before, after in states)
    launches = [line for line in log if line.startswith("launch")]
    assert len(launches) == 4
    assert all(" in 1001 " in line for line in launches)


def test_threads_without_a_context_load_once_and_all_launch(run: Run) -> None:
    log = run("""
        k = kernel()
        barrier = threading.Barrier(16)
        failures = []
        def work():
            barrier.wait()
            try:
                k.launch(0, GRID, BLOCK, ARGS)
            except Exception as error:
                failures.append(repr(error))
        threads = [threading.Thread(target=work) for _ in range(16)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not failures, failures
        say(log())""")
    assert sum(line.startswith("load") for line in log) == 1
    assert sum(line.startswith("retain") for line in log) == 1
    assert sum(line.startswith("launch") for line in log) == 16


def test_attributes_and_occupancy(run: Run) -> None:
    before, attributes, blocks, after = run("""
        k = kernel()
        before = k.is_loaded
        say([before, k.attributes(0), k.blocks_per_sm(0, 100, 11), k.is_loaded])""")
    assert (before, after) == (False, True)
    assert attributes == {
        "registers": 64,
        "local_bytes": 0,
        "static_shared_bytes": 1024,
        "max_threads_per_block": 768,
    }
    assert blocks == 111


def test_properties_are_the_devices_and_make_no_context(run: Run) -> None:
    properties, log = run("""
        p = _ext.device_properties(1)
        names = ("name compute_capability sm_count l2_bytes shared_per_block_optin_bytes "
                 "shared_per_sm_bytes registers_per_sm max_threads_per_sm max_threads_per_block "
                 "memory_bytes memory_clock_khz bus_width_bits clock_khz").split()
        say([[getattr(p, name) for name in names], log()])""")
    # The fake answers most attributes with their own numbers (CUdevice_attribute).
    expected = ["Fake GPU 1", [8, 0], 16, 38, 166912, 81, 82, 39, 1024, 3 << 35, 36, 37, 13]
    assert properties == expected
    assert log == ["init"]


FORK = """
def in_child(work):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:
            text = repr(error)
        os.write(write, str(text).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    return text
"""


def test_child_forked_after_use_is_refused_at_once(run: Run) -> None:
    in_child, status, again = run(
        FORK
        + textwrap.dedent("""
        k = kernel()
        k.launch(0, GRID, BLOCK, ARGS)
        launch = lambda: k.launch(0, GRID, BLOCK, ARGS)
        def refused_launch():
            message = refusal(launch, CudaUnavailableError)
            assert log().count("init") == 1  # the driver isn't asked again
            return message
        refused = in_child(refused_launch)
        status = in_child(lambda: _ext.cuda_status()["reason"])
        launch()
        say([refused, status, log()[-1]])""")
    )
    assert "forked after CUDA had been initialised" in in_child
    assert "spawn" in in_child
    assert status == "forked"
    assert again.startswith("launch")


def test_child_forked_before_use_works(run: Run) -> None:
    assert (
        run(
            FORK
            + textwrap.dedent("""
        k = kernel()
        def work():
            k.launch(0, GRID, BLOCK, ARGS)
            return log()[-1]
        say([in_child(work), in_child(work)])""")
        )
        == ["launch 1090 in 1000 grid 5,2,1 block 128,2,1 shared 0 stream 0 args abc 7 2.5"] * 2
    )


def test_driver_that_another_library_initialised_before_the_fork_is_told(run: Run) -> None:
    text = run(
        FORK
        + textwrap.dedent("""
        assert fake().cuInit(0) == 0
        say(in_child(lambda: refusal(lambda: kernel().load(0), CudaUnavailableError)))""")
    )
    assert "forked after CUDA had been initialised" in text


@pytest.mark.parametrize(
    ("settings", "reason", "texts"),
    [
        ({"FAKE_VERSION": 11080}, "driver_too_old", ["CUDA 11.8", "older than the 12.0", "525"]),
        ({"FAKE_INIT": 100}, "no_device", ["no GPU", "CUDA_VISIBLE_DEVICES is not set"]),
        ({"FAKE_DEVICES": 0}, "no_device", ["no GPU"]),
        (
            {"FAKE_INIT": 803},
            "init_failed",
            ["cuInit failed: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "nvidia-smi"],
        ),
        ({"FAKE_INIT": 34}, "init_failed", ["stub", "LD_LIBRARY_PATH"]),
        (
            {"FAKE_INIT": 100, "CUDA_VISIBLE_DEVICES": ""},
            "no_device",
            ["CUDA_VISIBLE_DEVICES is ''"],
        ),
    ],
)
def test_unusable_driver_says_which_case_it_is(
    run: Run, settings: dict[str, object], reason: str, texts: list[str]
) -> None:
    status, message = run(
        """
        status = _ext.cuda_status()
        say([status, refusal(lambda: kernel().load(0), CudaUnavailableError)])""",
        **settings,
    )
    assert status["available"] is False
    assert status["reason"] == reason
    for text in texts:
        assert text in message
        assert text in status["detail"]


def test_status_of_a_working_driver(run: Run, fake_driver: Path) -> None:
    status, version = run("say([_ext.cuda_status(), _ext.driver_version()])", FAKE_VERSION=13000)
    assert status["available"] is True
    assert (status["driver_version"], version) == ("13.0", "13.0")
    assert status["device_count"] == 2
    assert status["library"] == str(fake_driver / "libcuda.so.1")


def test_device_that_is_not_visible_is_named(run: Run) -> None:
    script = "say(refusal(lambda: kernel().load(3), CudaUnavailableError))"
    message = run(script, CUDA_VISIBLE_DEVICES="4,5")
    assert "cuda:3 isn't visible" in message
    assert "shows 2 devices" in message
    assert "CUDA_VISIBLE_DEVICES is '4,5'" in message


@pytest.mark.parametrize(
    ("result", "image", "texts"),
    [
        (
            209,
            'b"\\x7fELF\\2\\1\\1\\x41" + b"\\0" * 40 + bytes([4, 0x50, 0, 6]) + b"\\0" * 16',
            ["CUDA_ERROR_NO_BINARY_FOR_GPU (209)", "image is for sm_80", "device is sm_90"],
        ),
        (
            222,
            'b".version 9.9\\n.target sm_90a\\n"',
            [
                "CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)",
                "built for compute_90a",
                "serves CUDA 12.4",
                "fuser_direct[cu12]",
                "ptxas log line",
            ],
        ),
        (2, 'b"\\x7fELF" + b"\\0" * 60', ["out of memory", "empty_cache"]),
    ],
)
def test_refused_image_says_why_and_what_to_do(
    run: Run, result: int, image: str, texts: list[str]
) -> None:
    message = run(
        f"say(refusal(lambda: kernel(image={image}).load(0), CudaError))", FAKE_LOAD=result
    )
    assert message.startswith("load fused_0 on cuda:0 (sm_90): cuLibraryLoadData failed")
    for text in texts:
        assert text in message


def test_kernel_that_the_image_lacks_is_named(run: Run) -> None:
    message = run('say(refusal(lambda: kernel("missing").load(0), CudaError))')
    assert message == "load missing on cuda:0: the image has no kernel of this name"


def test_failed_launch_names_call_and_code(run: Run) -> None:
    message = run(
        "say(refusal(lambda: kernel().launch(0, GRID, BLOCK, ARGS), CudaError))", FAKE_LAUNCH=700
    )
    assert message.startswith("launch fused_0 on cuda:0, grid (5, 2, 1), block (128, 2, 1)")
    assert "cuLaunchKernelEx failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in message
    assert "restart the process" in message


def test_kernels_alive_at_exit_do_no_harm(run: Run) -> None:
    assert (
        run("""
        import builtins
        builtins.kept = kernel()
        builtins.kept.launch(0, GRID, BLOCK, ARGS)
        say("done")""")
        == "done"
    )


_EXECUTOR = """
import types, sys
DEVICE, EARLY = {device}, {early}

def program(*_):
    made = _ext.Program(2, DEVICE, 1)
    target = made.add_buffer(2, 32, [16, 256], [256, 1])
    for is_early in (False, EARLY):
        args = [("pointer", target, 0), ("i32", 7), ("f64", 2.5)]
        made.launch_cuda(kernel(), GRID, BLOCK, 0, args, early=is_early)
    made.add_output(target)
    return made

manual = types.ModuleType("fuser_direct.compiler.manual")
manual.make_compiler = lambda *_: (program, [])
sys.modules["fuser_direct.compiler.manual"] = manual
executor = _ext.KernelExecutor()
said = [executor.is_programmatic_dependent_launch_enabled()]
executor.compile("a fusion")
said.append(executor.is_programmatic_dependent_launch_enabled())
executor.compile("a fusion", [1.0])
say(said + [executor.is_programmatic_dependent_launch_enabled()])
"""


@pytest.mark.parametrize(
    ("device", "early", "settings", "is_enabled"),
    [
        (0, True, {}, True),
        (0, False, {}, False),
        (1, True, {}, False),
        (0, True, {"FAKE_VERSION": 12020}, False),
        (0, True, {"FUSER_DIRECT_EARLY_LAUNCH": 0}, False),
    ],
    ids=["can", "not early", "device", "driver", "switched off"],
)
def test_executor_tells_whether_launches_are_dependent(
    run: Run, device: int, early: bool, settings: dict[str, int], is_enabled: bool
) -> None:
    script = _EXECUTOR.format(device=device, early=early)
    assert run(script, **settings) == [False, False, is_enabled]
