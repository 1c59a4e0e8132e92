import pytest
import torch

from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.config.config import make_config
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.exchange import Exchange
from fedfeat.runs.experiment import Experiment


@pytest.fixture(scope="session")
def start():
    """Build an engine on the digits, in its first task; settings tables are given by name."""

    def build(method: str, **tables) -> InProcessEngine:
        table = {
            "method": method,
            "seed": 5,
            "data": {"name": "digits"},
            "scenario": {"tasks": 5, "clients": 3, "partition": "iid", "budget": 30},
            "model": {"width": 8},
            "train": {"batch": 32},
            "engine": {"device": "cpu"},
        }
        for name, entries in tables.items():
            table[name] = {**table.get(name, {}), **entries}
        engine = Experiment(make_config(table)).engine
        engine.begin_task(0)
        return engine

    return build


@pytest.fixture(scope="session")
def task_end_of():
    """Return the end of the engine's current task, as a replay rule sees it."""

    def build(engine: InProcessEngine) -> TaskEnd:
        quotas = engine.scenario.quotas(engine.task)
        return TaskEnd(
            exchange=Exchange(engine),
            task=engine.task,
            num_new=len(engine.scenario.task_classes[engine.task]),
            weights=engine.model.vector.clone(),
            quotas={int(k): int(quotas[k]) for k in engine.scenario.present(engine.task)},
            shares_budget=engine.config.scenario.budget_scope == "global_per_task",
            seed=engine.config.seed,
            server=None,  # no rule of these tests touches the server's own model
        )

    return build


@pytest.fixture(scope="session")
def kept():
    """Return each client's exemplars after one selection at the end of the current task."""

    def select(engine: InProcessEngine, task_end: TaskEnd) -> list[torch.Tensor]:
        engine.method.replay.at_task_end(task_end)
        return [engine.client(k).exemplars for k in range(engine.scenario.num_clients)]

    return select
