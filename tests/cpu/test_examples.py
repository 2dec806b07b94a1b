"""The programs of examples/ and the README's example run, and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# Those that need nothing but the test extra.
EXAMPLES = [
    ROOT / "examples" / f"{name}.py" for name in ("bias_gelu_torch", "rmsnorm", "torch_compile")
]


def printed_by(*arguments: str) -> str:
    """Standard output of a new interpreter; fails with its standard error."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.stem for example in EXAMPLES])
def test_example_runs_and_passes_its_own_check(example: Path) -> None:
    assert "largest error" in printed_by(str(example))


def test_the_readme_example_runs_as_printed() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 2
    check = """
expected = torch.nn.functional.rms_norm(sample, (100,), eps=1e-5)
assert y.shape == (64, 100)
assert torch.allclose(y, expected, rtol=1e-5, atol=1e-5)
"""
    # The same program, with a name for the tensor that its result is compared with.
    program = "".join(blocks).replace(
        "fd.execute([torch.randn(64, 100, device=device),",
        "fd.execute([(sample := torch.randn(64, 100, device=device)),",
    )
    assert "sample" in program
    assert "define void @" in printed_by("-c", program + check)


def test_the_command_line_runs_as_a_module() -> None:
    assert printed_by("-m", "fuser_direct", "--version").startswith("fuser_direct ")
