import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.methods.refed import _full_norms, _go_on, last_layer_norms
from fedfeat.models import ETFHead, LinearHead

STILL = 1e-12  # a learning rate at which the personalised model stays where it is


def classifier(bias=True, dim=6, classes=4):
    head = LinearHead(dim, seed=0)
    head.grow(classes, 0)
    if not bias:
        head.bias.requires_grad_(False)
    return head


def autograd_norms(head, features, labels):
    """Norm of each sample's gradient over the head's parameters, one backward pass per sample."""
    trained = [p for p in head.parameters() if p.requires_grad]
    norms = []
    for f, y in zip(features, labels, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(head(f[None]), y[None]), trained)
        norms.append(torch.cat([g.flatten() for g in gradients]).norm())
    return torch.stack(norms)


@pytest.mark.parametrize("bias", [True, False])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_closed_form_norms_equal_autograd_on_a_linear_head(bias, seed):
    features = 2 * torch.randn(9, 6, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(9) % 4
    head = classifier(bias)
    ours = last_layer_norms(features, head(features).detach(), labels, bias)
    assert torch.allclose(ours, autograd_norms(head, features, labels), rtol=1e-4)


def test_closed_form_norm_by_hand():
    """Two equal logits: p - e = (-1/2, 1/2); a feature of length two and a bias."""
    norm = last_layer_norms(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2), torch.tensor([0]))
    assert float(norm) == pytest.approx(0.5**0.5 * 5**0.5)


def choice(start, method="refed", **tables):
    """Return the engine's rule, its first client and the global model."""
    engine = start(method, **tables)
    engine.begin_task(1)  # four classes, so that old ones compete too
    return engine.method.replay, engine.client(0), engine.model.vector.clone()


def single_backward_norms(network, x, y):
    """Norm over all parameters of one backward pass per sample, with running statistics."""
    network = copy.deepcopy(network).eval()
    norms = []
    for image, label in zip(x, y, strict=True):
        loss = F.cross_entropy(network(image[None]).logits, label[None])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        norms.append(torch.cat([g.flatten() for g in gradients]).norm())
    return torch.stack(norms)


@pytest.mark.parametrize("method", ["refed", "refed+etf"])
@pytest.mark.parametrize("count", [3, 16, 21])
def test_full_norms_equal_single_backward_passes(method, count, start):
    _, client, _ = choice(start, method)
    batch = client.samples[:count]
    x, y = client.images.plain(batch), client.labels(batch)
    client.network.train()
    assert torch.allclose(
        _full_norms(client.network, dict(client.network.named_buffers()), x, y),
        single_backward_norms(client.network, x, y),
        rtol=1e-3,
    )
    assert client.network.training


def test_full_norms_leave_weights_statistics_and_gradients_alone(start):
    _, client, weights = choice(start)
    batch = client.samples[:5]
    _full_norms(client.network, dict(client.network.named_buffers()), client.images.plain(batch), client.labels(batch))
    assert torch.equal(client.model.vector, weights)
    assert (client.model.gradient == 0).all()


def test_full_scores_of_single_samples_are_their_gradient_norms(start):
    refed = {"passes": 1, "lr": STILL, "norms": "full"}
    rule, client, weights = choice(start, train={"batch": 1}, refed=refed)
    batch = client.samples[:6]
    expected = single_backward_norms(client.network, client.images.plain(batch), client.labels(batch))
    assert torch.allclose(rule.score(client, batch, weights).float(), expected, rtol=1e-3)


def test_last_layer_scores_are_those_of_the_batch_that_the_model_sees(start):
    rule, client, weights = choice(start, refed={"passes": 1, "lr": STILL})
    batch = client.samples[:32]
    network = copy.deepcopy(client.network).train()
    outputs = network(client.images.plain(batch))
    expected = autograd_norms(network.head, outputs.features.detach(), client.labels(batch))
    assert torch.allclose(rule.score(client, batch, weights).float(), expected, rtol=1e-4)


@pytest.mark.parametrize("norms", ["last_layer", "full"])
def test_scores_of_a_still_model_do_not_depend_on_the_order_of_batches(norms, start):
    rule, client, weights = choice(start, train={"batch": 8}, refed={"passes": 1, "lr": STILL, "norms": norms})
    batches = client.samples[:24].view(3, 8)
    one = rule.score(client, batches.flatten(), weights).view(3, 8)
    two = rule.score(client, batches[[2, 0, 1]].flatten(), weights).view(3, 8)
    assert torch.allclose(one[[2, 0, 1]], two, rtol=1e-4)


def test_scores_do_not_depend_on_the_order_inside_a_batch(start):
    rule, client, weights = choice(start, refed={"passes": 1, "lr": STILL})
    batch = client.samples[:30]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    one, two = rule.score(client, batch, weights), rule.score(client, batch[order], weights)
    assert torch.allclose(one[order], two, rtol=1e-4)


def test_later_passes_weigh_less(start):
    scores = {}
    for passes in (1, 2, 3):
        rule, client, weights = choice(start, refed={"passes": passes, "lr": STILL})
        scores[passes] = rule.score(client, client.samples[:40], weights)
    assert torch.allclose(scores[2], scores[1] * 3 / 2, rtol=1e-5)
    assert torch.allclose(scores[3], scores[1] * 11 / 6, rtol=1e-5)


@pytest.mark.parametrize("personal", [0.2, 0.8])
def test_scores_follow_the_path_of_the_personalised_model(personal, start):
    """``v <- v - lr (grad + (1 - lambda) / (2 lambda) (v - theta))``, written out."""
    rule, client, weights = choice(start, train={"batch": 16}, refed={"passes": 3, "lr": 0.05, "lambda": personal})
    candidates = client.samples[:40]
    network = copy.deepcopy(client.network).train()
    anchor = [p.detach().clone() for p in network.parameters()]
    expected = torch.zeros(40)
    for number in (1, 2, 3):
        for part in (slice(0, 16), slice(16, 32), slice(32, 40)):
            y = client.labels(candidates[part])
            outputs = network(client.images.plain(candidates[part]))
            error = outputs.logits.softmax(dim=1) - F.one_hot(y, outputs.logits.shape[1])
            norms = error.norm(dim=1) * (outputs.features.square().sum(dim=1) + 1).sqrt()
            expected[part] += norms.detach() / number
            gradients = torch.autograd.grad(F.cross_entropy(outputs.logits, y), list(network.parameters()))
            with torch.no_grad():
                for p, g, a in zip(network.parameters(), gradients, anchor, strict=True):
                    p -= 0.05 * (g + (1 - personal) / (2 * personal) * (p - a))
    assert torch.allclose(rule.score(client, candidates, weights).float(), expected, rtol=2e-3)
    still, _, _ = choice(start, refed={"passes": 3, "lr": STILL})
    assert not torch.allclose(still.score(client, candidates, weights).float(), expected, rtol=2e-3)


def test_scoring_leaves_no_gradient_behind(start):
    rule, client, weights = choice(start)
    rule.score(client, client.samples[:40], weights)
    assert (client.model.gradient == 0).all()


def test_a_single_sample_is_scored_with_running_statistics(start):
    rule, client, weights = choice(start, refed={"passes": 1, "lr": STILL})
    batch = client.samples[:1]
    network = copy.deepcopy(client.network).eval()
    expected = autograd_norms(network.head, network.features(client.images.plain(batch)).detach(), client.labels(batch))
    assert torch.allclose(rule.score(client, batch, weights).float(), expected, rtol=1e-4)


def test_the_highest_scores_are_kept(start):
    rule, client, weights = choice(start, refed={"passes": 2})
    candidates = rule.candidates(client)
    scores = rule.score(client, candidates, weights)
    rule.keep(client, {"weights": weights, "quota": 7})
    assert sorted(client.exemplars.tolist()) == sorted(candidates[scores.topk(7).indices].tolist())


def test_candidates_that_lie_class_by_class_are_mixed(start):
    rule, client, _ = choice(start)
    client.samples = torch.cat([(client.images.labels == c).nonzero().flatten() for c in (0, 1)])
    client.images.labels[: len(client.samples)] = client.images.labels[client.samples].sort().values
    client.samples = torch.arange(len(client.samples))
    mixed = rule.candidates(client)
    assert sorted(mixed.tolist()) == client.samples.tolist()
    assert torch.equal(mixed, rule.candidates(client))
    first = client.labels(mixed[:32])
    assert 8 <= int((first == 1).sum()) <= 24


def test_what_is_kept_does_not_depend_on_how_samples_are_ordered(start):
    held = []
    for flip in (False, True):
        rule, client, weights = choice(start, refed={"passes": 1}, train={"batch": 16})
        client.samples = client.samples.flip(0) if flip else client.samples
        rule.keep(client, {"weights": weights, "quota": 9})
        held.append(client.exemplars)
    assert torch.equal(*held)


def test_a_quota_beyond_the_samples_keeps_all_of_them(start):
    rule, client, weights = choice(start, refed={"passes": 1})
    rule.keep(client, {"weights": weights, "quota": 10_000})
    assert sorted(client.exemplars.tolist()) == sorted(client.samples.tolist())


def test_scope_all_chooses_the_buffer_anew_from_old_and_new_samples(start):
    rule, client, weights = choice(start, refed={"passes": 1, "scope": "all"})
    old = (client.images.labels == 0).nonzero().flatten()[:10]
    client.keep(old)
    candidates = rule.candidates(client)
    assert sorted(candidates.tolist()) == sorted([*client.samples.tolist(), *old.tolist()])
    scores = rule.score(client, candidates, weights)
    rule.keep(client, {"weights": weights, "quota": 10})
    assert client.exemplars.tolist() == candidates[scores.argsort(descending=True, stable=True)[:20]].tolist()


def test_scope_all_loses_no_exemplar_that_was_held_out_of_training(start):
    rule, client, weights = choice(start, refed={"passes": 1, "scope": "all"})
    client.held_out_share = 0.2
    client.keep((client.images.labels == 0).nonzero().flatten()[:10])
    everything = sorted(torch.cat([client.samples, client.exemplars]).tolist())
    assert len(client.held_out) > 0
    rule.keep(client, {"weights": weights, "quota": 10_000})
    assert sorted(client.exemplars.tolist()) == everything


def test_scope_task_leaves_the_buffer_alone(start):
    rule, client, weights = choice(start, refed={"passes": 1})
    old = (client.images.labels == 0).nonzero().flatten()[:10]
    client.keep(old)
    rule.keep(client, {"weights": weights, "quota": 5})
    assert torch.equal(client.exemplars[:10], old)
    assert len(client.exemplars) == 15


@pytest.mark.parametrize("feat", [{"logits": "raw"}, {"logits": "cosine"}, {"logits": "cosine", "logit_scale": 4.0}])
def test_last_layer_scores_on_an_etf_are_gradient_norms_of_its_prototypes(feat, start):
    rule, client, weights = choice(start, "refed+etf", refed={"passes": 1, "lr": STILL}, feat=feat)
    batch = client.samples[:32]
    network = copy.deepcopy(client.network).train()
    features = network.features(client.images.plain(batch)).detach()
    head = network.head
    assert isinstance(head, ETFHead)
    head.prototypes = head.prototypes.clone().requires_grad_()
    expected = []
    for f, y in zip(features, client.labels(batch), strict=True):
        (gradient,) = torch.autograd.grad(F.cross_entropy(head(f[None]), y[None]), head.prototypes)
        expected.append(gradient.norm())
    assert torch.allclose(rule.score(client, batch, weights).float(), torch.stack(expected), rtol=1e-3)


def test_a_personal_model_can_go_on_from_the_task_before(start, task_end_of):
    engine = start("refed", refed={"start": "previous", "lr": 0.05, "passes": 2})
    task_end = task_end_of(engine)
    engine.method.replay.at_task_end(task_end)
    client = engine.client(0)
    first = client.state["personal_model"].clone()
    assert not torch.equal(first, task_end.weights[: len(first)])
    assert client.state["personal_model.classes"] == 2
    engine.begin_task(1)
    weights = torch.full_like(engine.model.vector, 0.01)
    client = engine.client(0)
    client.model.load(weights)
    _go_on(client)
    came = client.model.widened(first, 2, fill=0.01)  # the rows of new classes are the global model's
    assert torch.equal(client.model.weights, came)
    assert "personal_model" not in start("refed").client(0).state


def test_a_personal_model_that_starts_anew_leaves_nothing_behind(start, task_end_of):
    engine = start("refed")
    engine.method.replay.at_task_end(task_end_of(engine))
    assert set(engine.client(0).state) == {"exemplars"}
