"""Types that the tests of sweeps share."""

from __future__ import annotations

from collections.abc import Callable

from fedfeat.config.config import Config

MakeConfig = Callable[..., Config]
