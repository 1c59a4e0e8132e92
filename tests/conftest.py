"""One thread per process: the networks under test are small, and threads only get in each other's way."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
