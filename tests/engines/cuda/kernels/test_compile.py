"""Every kernel compiles for the GPU that it is written for, on a machine without one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from fedfeat.engines.cuda import kernels

SCRIPT = Path(__file__).with_name("compile_for_gpu.py")
LAUNCHED = re.compile(r"\blaunch\(\s*(_\w+)")


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings NVIDIA's assembler on Linux alone")
def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # nothing is found compiled
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = kernels.__path__
    launched = {name for path in Path(folder).glob("*.py") for name in LAUNCHED.findall(path.read_text())}
    assert launched == {line.split()[0] for line in done.stdout.splitlines()}
