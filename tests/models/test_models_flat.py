import pytest
import torch

from fedfeat.algorithm.method import linear_head
from fedfeat.models import ETFHead, FlatModel, ModelSettings, as_vector, build_network

HEADS = {
    "linear": linear_head,
    "etf": lambda dim, seed, classes: ETFHead(dim, seed=seed),
    "learnable": lambda dim, seed, classes: ETFHead(
        dim, seed=seed, logits="cosine", scale="learnable", feature_layer="mlp"
    ),
}


def network(head="linear", classes=3, extras=None):
    built = build_network(ModelSettings(width=8), (8, 8, 1), HEADS[head], seed=0, num_classes=10, extras=extras)
    built.head.grow(classes, 0)
    return built


def images(count=6, seed=0):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def counters(net):
    return [b for n, b in net.named_buffers() if n.endswith("num_batches_tracked")]


@pytest.mark.parametrize("head", HEADS)
def test_flattening_changes_no_output(head):
    net = network(head).eval()
    before = net(images())
    FlatModel(net)
    after = net(images())
    # Channels come last in the vector, so sums run in another order.
    assert torch.allclose(before.features, after.features, atol=1e-5)
    assert torch.allclose(before.logits, after.logits, atol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_the_vector_holds_every_trained_number_then_every_running_statistic(head):
    net = network(head)
    model = FlatModel(net)
    trained = sum(p.numel() for p in net.parameters())
    running = sum(b.numel() for n, b in net.named_buffers() if "running_" in n)
    assert model.num_trainable == trained
    assert len(model.vector) == trained + model.gap + running
    assert torch.equal(model.weights, as_vector(p.detach() for p in model.parameters))
    assert {id(p) for p in model.parameters} == {id(p) for p in net.parameters()}


@pytest.mark.parametrize("head", HEADS)
def test_every_entry_of_even_size_starts_at_a_multiple_of_sixteen_bytes(head):
    """Vectorised kernels fault on other addresses; a head of three classes has a bias of odd size."""
    model = FlatModel(network(head))
    for name, value in model.named_values().items():
        if value.numel() % 4 == 0:
            assert value.storage_offset() % 4 == 0, name


@pytest.mark.parametrize("head", HEADS)
def test_writing_into_the_vector_writes_into_the_network(head):
    net = network(head)
    model = FlatModel(net)
    model.vector.fill_(0.25)
    assert all((p == 0.25).all() for p in net.parameters())
    assert all((b == 0.25).all() for n, b in net.named_buffers() if "running_" in n)


def test_the_frame_is_no_part_of_the_vector():
    net = network("etf")
    etf = net.head.prototypes.clone()
    model = FlatModel(net)
    assert "head.prototypes" not in model.layout
    model.vector.zero_()
    assert torch.equal(net.head.prototypes, etf)


def test_layout_names_every_entry_in_the_order_of_the_vector():
    model = FlatModel(network())
    assert model.layout["head.weight"] == (3, 16)
    assert list(model.layout)[-1].endswith("running_var")
    values = model.named_values()
    assert list(values) == list(model.layout)
    joined = as_vector(values.values())
    assert torch.equal(joined[: model.num_trainable], model.weights)
    assert torch.equal(joined[model.num_trainable :], model.vector[model.num_trainable + model.gap :])
    values["head.bias"].fill_(7.0)
    assert (model.network.head.bias == 7.0).all()


def test_loading_copies_the_numbers_and_keeps_the_caller_s_vector_apart():
    model, other = FlatModel(network()), FlatModel(network())
    sent = torch.arange(len(model.vector), dtype=torch.float32) / 1e3
    model.load(sent)
    other.load(sent)
    assert torch.equal(model.vector, sent)
    model.vector.zero_()
    assert sent[-1] > 0
    assert torch.equal(other.vector, sent)


def test_loading_a_vector_of_another_layout_is_refused():
    model = FlatModel(network())
    with pytest.raises(RuntimeError):
        model.load(torch.zeros(len(model.vector) + 1))


@pytest.mark.parametrize("head", HEADS)
def test_backward_writes_into_the_flat_gradient_and_adds_up(head):
    plain, flat = network(head), FlatModel(network(head))
    for _ in range(2):
        plain(images()).logits.square().sum().backward()
        flat.network(images()).logits.square().sum().backward()
    gradients = {name: p.grad for name, p in plain.named_parameters()}
    expected = as_vector(gradients[name] for name in list(flat.layout)[: flat.num_entries])
    assert expected.abs().max() > 0
    assert torch.allclose(flat.gradient, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    flat.gradient.zero_()
    assert all((p.grad == 0).all() for p in flat.network.parameters())


def test_training_moves_running_statistics_inside_the_vector():
    model = FlatModel(network())
    before = model.vector[model.num_trainable :].clone()
    model.network.train()(images())
    after = model.vector[model.num_trainable :]
    assert (before != after).float().mean() > 0.5


def test_integer_counters_are_left_alone():
    net = network()
    model = FlatModel(net)
    net.train()(images())
    assert counters(net)
    assert all(c == 1 and c.dtype == torch.long for c in counters(net))
    model.load(torch.zeros_like(model.vector))
    assert all(c == 1 for c in counters(net))


@pytest.mark.parametrize("head", HEADS)
def test_growth_keeps_every_weight(head):
    net = network(head, classes=3)
    model = FlatModel(net)
    model.load(torch.randn(len(model.vector), generator=torch.Generator().manual_seed(1)))
    before = {n: v.clone() for n, v in model.named_values().items()}
    net.head.grow(5, 1)
    grown = FlatModel(net).named_values()
    assert grown.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(grown[name][: len(value)] if value.dim() else grown[name], value), name


def test_after_growth_the_old_vector_no_longer_reaches_the_network():
    net = network()
    old = FlatModel(net)
    net.head.grow(5, 1)
    new = FlatModel(net)
    kept = new.vector.clone()
    old.vector.zero_()
    old.gradient.fill_(1.0)
    assert torch.equal(as_vector(p.detach() for p in net.parameters()), kept[: new.num_trainable])
    assert all((p.grad == 0).all() for p in net.parameters())


# The bias of a head has an odd size or not, and so another place among the layers behind it.
@pytest.mark.parametrize(("old_classes", "new_classes"), [(3, 5), (2, 4), (4, 6), (4, 8), (1, 4)])
@pytest.mark.parametrize("extras", [None, {"projection": lambda dim: torch.nn.Linear(dim, 3)}], ids=["alone", "extra"])
@pytest.mark.parametrize("head", HEADS)
def test_an_earlier_tasks_weights_take_their_places_in_todays_layout(head, extras, old_classes, new_classes):
    net = network(head, old_classes, extras)
    before = FlatModel(net)
    before.load(torch.randn(len(before.vector), generator=torch.Generator().manual_seed(1)))
    sent, values = before.vector.clone(), {n: v.clone() for n, v in before.named_values().items()}
    net.head.grow(new_classes, 1)
    model = FlatModel(net)
    model.weights.copy_(model.widened(sent, old_classes, fill=0.5))
    for name, value in list(model.named_values().items())[: model.num_entries]:
        old = values[name]
        if name in {"head.weight", "head.bias"}:
            assert torch.equal(value[:old_classes], old)
            assert (value[old_classes:] == 0.5).all()
        else:
            assert torch.equal(value, old), name
