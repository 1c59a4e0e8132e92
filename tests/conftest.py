"""One thread per process, since the networks under test are small; no time limits, since machines are busy."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("fedfeat", deadline=None)
settings.load_profile("fedfeat")
