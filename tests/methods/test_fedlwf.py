import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.algorithm.losses import soft_cross_entropy
from fedfeat.algorithm.step import take_step
from fedfeat.methods.fedlwf import TEACHER_LOGITS, FedLwFSettings
from fedfeat.runs.experiment import Experiment
from toy import toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def logits(rows=6, columns=4, seed=0):
    return 3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_distillation_by_hand():
    """At T = 2 the teacher says (3/4, 1/4) and (1/2, 1/2), the student (1/2, 1/2) and (4/5, 1/5)."""
    teacher = torch.tensor([[2 * math.log(3.0), 0.0], [1.0, 1.0]])
    student = torch.tensor([[0.0, 0.0], [2 * math.log(4.0), 0.0]])
    second = -0.5 * math.log(4 / 5) - 0.5 * math.log(1 / 5)
    expected = (math.log(2) + second) / 2  # a mean over the batch, not times T^2
    assert float(soft_cross_entropy(student, teacher, 2.0)) == pytest.approx(expected, rel=1e-6)


@PROPERTY
@given(seed=st.integers(0, 1000), temperature=st.floats(0.5, 20))
def test_a_perfect_student_pays_the_teachers_entropy(seed, temperature):
    z = logits(seed=seed).double()
    p = F.softmax(z / temperature, dim=1)
    entropy = -(p * p.log()).sum(dim=1).mean()
    assert torch.allclose(soft_cross_entropy(z, z, temperature), entropy)
    assert soft_cross_entropy(logits(seed=seed + 1).double(), z, temperature) >= entropy


def test_distillation_of_a_single_old_class_says_nothing():
    student = logits(columns=1).requires_grad_()
    loss = soft_cross_entropy(student, logits(columns=1, seed=1), 2.0)
    loss.backward()
    assert loss == 0
    assert (student.grad == 0).all()


def test_the_gradient_is_that_of_softened_probabilities_over_t():
    student, teacher = logits().double().requires_grad_(), logits(seed=1).double()
    soft_cross_entropy(student, teacher, 2.0).backward()
    expected = (F.softmax(student.detach() / 2, dim=1) - F.softmax(teacher / 2, dim=1)) / (2 * len(teacher))
    assert torch.allclose(student.grad, expected)


def test_defaults():
    assert FedLwFSettings() == FedLwFSettings(**{"lambda": 3.0, "temperature": 2.0})


@pytest.fixture
def second_task():
    """An engine in its second task, and the vectors that the first one ended with and the second one starts from."""
    experiment = Experiment(toy_config("fedlwf"), toy_dataset())
    engine = experiment.engine
    engine.begin_task(0)
    client = engine.client(0)
    engine.ops["train"](client, {"weights": engine.model.vector.clone()})
    previous = engine.model.vector.clone()
    start = engine.begin_task(1, previous)
    engine.shared = {"previous_model": previous}
    return engine, previous, start


def test_the_teacher_is_the_previous_model_in_evaluation_mode(second_task):
    engine, previous, start = second_task
    client = engine.client(0)
    engine.model.load(start)
    look = engine.method.references[0].start(client, {"weights": start})
    images = client.images.plain(client.samples[:5])
    engine.network.eval()
    taught = look(images)[TEACHER_LOGITS]
    assert not taught.requires_grad
    assert torch.allclose(taught, engine.network(images).logits[:, : client.num_old], atol=1e-6)
    assert not torch.allclose(taught, engine.network.train()(images).logits[:, : client.num_old], atol=1e-3)
    engine.ops["train"](client, {"weights": start})
    assert torch.equal(look(images)[TEACHER_LOGITS], taught), "training moved the teacher"
    assert torch.equal(engine.shared["previous_model"], previous)


def test_the_losses_of_a_step(second_task):
    engine, _, start = second_task
    client = engine.client(0)
    engine.model.load(start)
    look = engine.method.references[0].start(client, {"weights": start})
    images, labels = client.images.plain(client.samples), client.labels(client.samples)
    step = take_step(client.network, images, labels, client.seen, references=(look,))
    ce, kd = engine.method.active_terms(1)
    assert (ce.name, ce.weight, kd.name, kd.weight) == ("ce", 1.0, "kd", 3.0)
    assert torch.equal(ce.function(step), F.cross_entropy(step.logits[:, 2:], labels - 2))
    assert torch.equal(kd.function(step), soft_cross_entropy(step.logits[:, :2], look(images)[TEACHER_LOGITS], 2.0))
    (head,) = torch.autograd.grad(ce.function(step), [engine.network.head.weight], retain_graph=True)
    assert (head[:2] == 0).all()
    assert head[2:].abs().max() > 0
    (head,) = torch.autograd.grad(kd.function(step), [engine.network.head.weight])
    assert head[:2].abs().max() > 0
    assert (head[2:] == 0).all()


def test_without_distillation_it_is_finetune(tmp_path):
    ours = run_toy(tmp_path, "fedlwf", fedlwf={"lambda": 0})
    assert ours.weights == run_toy(tmp_path, "finetune").weights


def test_distillation_changes_later_tasks_only(tmp_path):
    ours, finetune = run_toy(tmp_path, "fedlwf"), run_toy(tmp_path, "finetune")
    assert ours.result["accuracy_matrix"][0] == finetune.result["accuracy_matrix"][0]
    assert ours.weights != finetune.weights


def test_nothing_extra_is_sent(tmp_path):
    run = run_toy(tmp_path, "fedlwf")
    assert extra_traffic(run.result) == {}
    finetune = run_toy(tmp_path, "finetune").result
    for way in ("up", "down"):
        key = f"{way}/train/weights"
        assert run.result["traffic"][key] == finetune["traffic"][key]


def test_a_client_that_missed_the_first_round_is_sent_its_teacher(tmp_path):
    """With one of three clients per round, those who come later in a task pay for the previous model."""
    run = run_toy(tmp_path, "fedlwf", scenario={"participation": 1}, train={"rounds": 4})
    scenario, engine = run.experiment.scenario, Experiment(toy_config("fedlwf"), toy_dataset()).engine
    expected = 0
    for task in range(3):
        vector = engine.begin_task(task)
        if task + 1 < 3:
            came = [set(scenario.participants(task + 1, r).tolist()) for r in range(4)]
            expected += 4 * len(vector) * len(set.union(*came) - came[0])
    assert expected > 0
    assert extra_traffic(run.result) == {"down/train/shared.previous_model": expected}
