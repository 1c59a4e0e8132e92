"""Types that the tests of the paper's tables share."""

from __future__ import annotations

from collections.abc import Callable

from fedfeat_reproduction.records import Record

MakeRecord = Callable[..., Record]
