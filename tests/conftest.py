"""One thread per process, since the networks under test are small; no time limits, since machines are busy.

Without a GPU, Triton's kernels run in its interpreter, which is slow and exact enough to find what is wrong.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton

settings.register_profile("fedfeat", deadline=None)
settings.load_profile("fedfeat")
