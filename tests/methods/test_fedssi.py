import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.algorithm.losses import pull_to_global, quadratic_pull
from fedfeat.core.errors import ConfigError
from fedfeat.methods.fedssi import (
    IMPORTANCE,
    FedSSISettings,
    importance_of,
    surrogate_step,
)
from fedfeat.models import as_vector
from fedfeat.runs.experiment import Experiment
from toy import PER_CLASS, scenario_from, toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def test_two_surrogate_steps_by_hand():
    """On the loss v^2 / 2 from v = 1 with q = 0.5 and lr 0.5; the gradient is v itself."""
    weights, anchor, contribution = torch.tensor([1.0]), torch.tensor([1.0]), torch.zeros(1)
    gradient = weights.clone()
    surrogate_step(weights, gradient, anchor, contribution, pull=0.5, lr=0.5)
    # direction 1, step to 0.5, contribution 0.5 * 1 * 1
    assert (float(weights), float(contribution), float(gradient)) == (0.5, 0.5, 0.0)
    gradient.copy_(weights)
    surrogate_step(weights, gradient, anchor, contribution, pull=0.5, lr=0.5)
    # direction 0.5 + 0.5 * (0.5 - 1) = 0.25, step to 0.375, contribution + 0.5 * 0.5 * 0.25
    assert (float(weights), float(contribution)) == (0.375, 0.5625)


def descend(curvature, start, *, pull, lr, steps):
    """Minimise ``sum a v^2 / 2`` as the surrogate does."""
    weights, anchor, contribution = start.clone(), start.clone(), torch.zeros_like(start)
    for _ in range(steps):
        surrogate_step(weights, curvature * weights, anchor, contribution, pull=pull, lr=lr)
    return weights, contribution


@settings(PROPERTY, max_examples=6)
@given(seed=st.integers(0, 1000), pull=st.sampled_from([0.0, 0.5, 4.5]))
def test_contributions_add_up_to_the_fall_of_the_loss(seed, pull):
    """Up to the order of the learning rate: ten times smaller steps leave about a tenth of the error."""
    generator = torch.Generator().manual_seed(seed)
    curvature, start = torch.rand(2, 10, generator=generator, dtype=torch.double) + 0.1

    def error(lr, steps):
        end, contribution = descend(curvature, start, pull=pull, lr=lr, steps=steps)
        fallen = 0.5 * curvature * (start.square() - end.square())
        return ((contribution - fallen).abs() / fallen).max()

    assert error(0.001, 2000) < 0.15 * error(0.01, 200)
    assert error(0.001, 2000) < 0.01


def test_the_pull_of_the_global_model():
    assert pull_to_global(1.0) == 0
    assert pull_to_global(0.5) == 0.5
    assert pull_to_global(0.1) == pytest.approx(4.5)


def test_a_personal_surrogate_is_ordinary_si_and_a_global_one_stays():
    curvature, start = torch.tensor([1.0, 4.0]), torch.tensor([1.0, -2.0])
    end, contribution = descend(curvature, start, pull=pull_to_global(1.0), lr=0.1, steps=20)
    plain, expected = start.clone(), torch.zeros(2)
    for _ in range(20):
        gradient = curvature * plain
        moved = -0.1 * gradient
        plain, expected = plain + moved, expected - gradient * moved
    assert torch.allclose(end, plain)
    assert torch.allclose(contribution, expected)
    distances = [
        float((descend(curvature, start, pull=pull_to_global(share), lr=0.001, steps=2000)[0] - start).norm())
        for share in (1.0, 0.1, 0.01, 0.001)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.02 * distances[0]


def test_importance_by_hand():
    contribution, moved = torch.tensor([2.0, -3.0, 0.0, 1.0]), torch.tensor([1.0, 5.0, 1.0, 0.0])
    assert importance_of(contribution, moved, 1.0).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert importance_of(contribution, moved, 0.25).tolist() == pytest.approx([1.6, 0.0, 0.0, 4.0])


@PROPERTY
@given(seed=st.integers(0, 1000), xi=st.floats(1e-3, 10))
def test_importance_is_never_negative(seed, xi):
    contribution, moved = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed))
    assert (importance_of(contribution, moved, xi) >= 0).all()


def test_the_pull_by_hand():
    weights, anchor = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.0, 2.0, 1.0])
    importance, gradient = torch.tensor([0.5, 9.0, 0.25]), torch.tensor([10.0, 20.0, 30.0])
    value = quadratic_pull(weights, gradient, anchor, importance, weight=2 * 0.5)
    # moved by (1, 0, -2): 2 * 0.5 * (0.5, 0, -0.5) and 0.5 * (0.5 * 1 + 0.25 * 4)
    assert gradient.tolist() == [10.5, 20.0, 29.5]
    assert float(value) == 0.75


def test_defaults():
    values = {"lambda": 0.5, "passes": 5, "lr": 0.01, "alpha": 10.0, "xi": 1e-3, "clip": 1.0}
    assert FedSSISettings() == FedSSISettings(**values)
    with pytest.raises(ConfigError, match=r"fedssi\.lambda"):
        toy_config("fedssi", fedssi={"lambda": 0})


def start(**changes):
    engine = Experiment(toy_config("fedssi", **changes), toy_dataset()).engine
    return engine, engine.begin_task(0)


def measured(engine, client_id, weights):
    client = engine.client(client_id)
    engine.ops["surrogate"](client, {"weights": weights})
    return client


def test_the_boundary_step_follows_its_definition():
    """One pass, one batch: s = lr g^2 and the displacement is -lr g, with BatchNorm in training mode."""
    engine, weights = start(fedssi={"passes": 1, "xi": 0.5}, train={"batch": 64})
    client = engine.client(0)
    ((images, labels),) = list(client.epoch("surrogate"))
    assert sorted(labels.tolist()) == sorted(client.labels(client.samples).tolist())
    engine.network.train()
    loss = torch.nn.functional.cross_entropy(engine.network(images).logits, labels)
    gradients = torch.autograd.grad(loss, list(engine.network.parameters()))
    g = as_vector(p for p in gradients)
    state = measured(engine, 0, weights).state
    assert torch.allclose(state[IMPORTANCE], 0.01 * g.square() / ((0.01 * g).square() + 0.5), rtol=1e-3, atol=1e-9)
    assert (engine.model.gradient == 0).all(), "a gradient was left for the next client"


def test_measuring_does_not_depend_on_who_was_asked_before():
    engine, weights = start()
    first = measured(engine, 1, weights).state[IMPORTANCE]
    measured(engine, 0, weights)
    assert torch.equal(measured(engine, 1, weights).state[IMPORTANCE], first)


def test_importances_add_up_over_tasks_and_missed_tasks():
    """A client with data in tasks 1 and 3 only; its old rows keep what they had, later ones start at zero."""
    dataset = toy_dataset()
    squares = [[list(range(c * PER_CLASS, c * PER_CLASS + 9))] for c in (0, 2, 4)]
    squares[1] = [[]]
    scenario = scenario_from(dataset.train_labels, squares)
    config = toy_config("fedssi", scenario={"clients": 1, "min_samples": 0})
    engine = Experiment(config, dataset, scenario).engine
    kept = []
    for task in range(3):
        weights = engine.begin_task(task, engine.model.vector.clone() if task else None)
        list(engine.ask("surrogate", {0: {"weights": weights}}))
        kept.append(engine.states[0])
    assert kept[1][IMPORTANCE] is kept[0][IMPORTANCE]
    assert kept[2][f"{IMPORTANCE}.classes"] == 6
    fresh = Experiment(config, dataset, scenario).engine
    for task in range(3):
        fresh.begin_task(task, fresh.model.vector.clone() if task else None)
    alone = measured(fresh, 0, weights).state[IMPORTANCE]
    earlier = measured_in_the_first_task(config, dataset, scenario)
    assert torch.allclose(kept[2][IMPORTANCE], fresh.model.widened(earlier, 2) + alone)


def measured_in_the_first_task(config, dataset, scenario):
    engine = Experiment(config, dataset, scenario).engine
    return measured(engine, 0, engine.begin_task(0)).state[IMPORTANCE]


def second_task(**changes):
    engine, weights = start(**changes)
    list(engine.ask("surrogate", {0: {"weights": weights}}))
    begin = engine.begin_task(1, weights)
    engine.shared = {"previous_model": weights}
    return engine, begin


def test_the_penalty_pulls_by_importance_and_spares_new_rows():
    engine, _ = second_task(fedssi={"clip": "none", "alpha": 0.5})
    client, model = engine.client(0), engine.model
    push = engine.method.penalties[0].start(client, {})
    assert float(push(model.weights, model.gradient)) == 0, "at the anchor there is no pull"
    model.weights.add_(0.5)
    value = push(model.weights, model.gradient)
    omega = model.widened(client.state[IMPORTANCE], 2)
    assert torch.allclose(model.gradient, omega * 0.5, atol=1e-7)  # 2 * alpha * Omega * moved with alpha 0.5
    assert float(value) == pytest.approx(0.5 * float(omega.sum()) * 0.25, rel=1e-4)
    new_rows = model.widened(torch.ones_like(client.state[IMPORTANCE]), 2) == 0
    assert (model.gradient[new_rows] == 0).all()


@pytest.mark.parametrize("client_id", [0, 1], ids=["with importance", "without"])
def test_gradients_are_clipped_while_the_penalty_is_on(client_id):
    engine, _ = second_task()
    gradient = torch.linspace(-3, 3, engine.model.num_trainable)
    push = engine.method.penalties[0].start(engine.client(client_id), {})
    push(engine.model.weights, gradient)
    assert gradient.min() == -1
    assert gradient.max() == 1
    assert torch.equal(gradient, torch.linspace(-3, 3, engine.model.num_trainable).clamp(-1, 1))


def test_nothing_is_pulled_or_clipped_in_the_first_task():
    engine, _ = start()
    assert engine.method.penalties[0].start(engine.client(0), {}) is None


def test_a_client_that_measured_nothing_is_not_pulled():
    engine, begin = second_task()
    reply = engine.ops["train"](engine.client(1), {"weights": begin})
    assert reply["loss.ssi"] == 0
    assert engine.ops["train"](engine.client(0), {"weights": begin})["loss.ssi"] > 0


def test_without_strength_and_clipping_it_is_finetune(tmp_path):
    ours = run_toy(tmp_path, "fedssi", fedssi={"alpha": 0, "clip": "none"})
    assert ours.weights == run_toy(tmp_path, "finetune").weights


def test_importances_never_leave_the_client(tmp_path):
    """The final model, which the measurement needs, is all that a task_end sends."""
    run = run_toy(tmp_path, "fedssi")
    assert extra_traffic(run.result) == {}
    assert not [key for key in run.result["traffic"] if key.startswith("up/surrogate")]
    assert sorted(run.experiment.engine.states) == [0, 1, 2]
    for state in run.experiment.engine.states.values():
        assert (state[IMPORTANCE] >= 0).all()
        assert state[IMPORTANCE].max() > 0
        assert state[f"{IMPORTANCE}.classes"] == 4, "nothing is measured after the last task"


def test_the_result_says_what_is_assumed(tmp_path):
    assert "assumptions" in run_toy(tmp_path, "fedssi").result["notes"][0]
