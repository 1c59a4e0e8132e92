"""One thread per process, since the networks under test are small; no time limits, since machines are busy.

Without a GPU, Triton's kernels run in its interpreter, which is slow and exact enough to find what is wrong.
With ``--processor-time`` a run ends with the processor time of each folder.
"""

import gc
import logging
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from attack_table import Recorder, Row, update

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton

# Nobody pulls the plug here, and waiting for the disk would be a quarter of a small run.
os.fsync = lambda descriptor: None

settings.register_profile("fedfeat", deadline=None)
settings.load_profile("fedfeat")

BEFORE = pytest.StashKey[float]()
ROWS = pytest.StashKey[list[Row]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave all that earlier tests imported out of garbage collections, which the library asks for between runs."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries that count what is left at the end would complain


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Take back what a program that ran in this process set for its log: later tests read the log themselves."""
    logger = logging.getLogger("fedfeat")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.level, logger.propagate, logger.handlers = before


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores, since tests of processes and browsers wait much of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attack-table", type=Path, help="Markdown file whose table of attacks takes this run's rows")
    parser.addoption("--processor-time", action="store_true", help="end with the processor time of each folder")


@pytest.fixture
def record_attack(request: pytest.FixtureRequest) -> Recorder:
    """Note for the table what a test tried and what came of it."""
    rows = request.config.stash.setdefault(ROWS, [])

    def record(who: str, attack: str, outcome: str, times: int = 1) -> None:
        test = request.node.originalname
        rows.append(Row(who, attack, times, " ".join(outcome.split()).replace("|", r"\|"), test))

    return record


def pytest_sessionfinish(session: pytest.Session) -> None:
    table = session.config.getoption("--attack-table")
    if table is not None:
        update(table, session.config.stash.get(ROWS, []))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the processor time since the last report, of this process and of those it started and waited for."""
    report = yield
    now = sum(os.times()[:4])
    report.user_properties.append(("processor_seconds", now - item.config.stash.get(BEFORE, now)))
    item.config.stash[BEFORE] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the sums by folder, largest first."""
    if not config.getoption("--processor-time"):
        return
    seconds: Counter[str] = Counter()
    for report in (r for reports in terminalreporter.stats.values() for r in reports if hasattr(r, "user_properties")):
        folder = report.nodeid.split("/")[1]
        seconds[folder] += sum(value for name, value in report.user_properties if name == "processor_seconds")
    terminalreporter.section("processor time in seconds")
    for folder, total in (*seconds.most_common(), ("all", seconds.total())):
        terminalreporter.write_line(f"{total:8.1f}  {folder}")
