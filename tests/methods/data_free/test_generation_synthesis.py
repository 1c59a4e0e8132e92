import copy
import gc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from networks import anchors_for, device_images, frozen, network_for
from torch import nn
from torch.nn import functional as F

from fedfeat.data.dataset import Augmentation, Dataset
from fedfeat.engines.cuda.simulated import simulated_gpu
from fedfeat.methods.data_free import lander_synthesis, target_synthesis
from fedfeat.methods.data_free.generator import ImageGenerator
from fedfeat.methods.data_free.lander_synthesis import (
    AnchoredGenerator,
    Bound,
    LanderGenerationSettings,
    balanced_labels,
)
from fedfeat.methods.data_free.losses import softened_divergence
from fedfeat.methods.data_free.pool import SyntheticPool
from fedfeat.methods.data_free.synthesis import SynthesisContext, Views, agreement, distil, new_student
from fedfeat.methods.data_free.target_synthesis import (
    Recipe,
    SharedGenerator,
    TargetGenerationSettings,
    add_differences,
    add_gradients,
    recipe_for,
)
from simulated_gpu import repeat
from toy import toy_dataset

SMALL_TARGET = TargetGenerationSettings(rounds=3, batch=12, steps=2, warmup=1, student_steps=2)
SMALL_LANDER = LanderGenerationSettings(
    rounds=2, batch=12, steps=2, warmup=1, student_steps=2, adversarial_delay=1, code=16
)
ONE_TARGET = TargetGenerationSettings(rounds=1, batch=4, steps=1, warmup=0, student_steps=1)
ONE_LANDER = LanderGenerationSettings(
    rounds=1, batch=4, steps=1, warmup=0, student_steps=1, adversarial_delay=0, code=8
)
BOUND = Bound(0.015, 5.0)


def by_target(context, settings=SMALL_TARGET):
    return target_synthesis.synthesise(context, settings)


def by_lander(context, settings=SMALL_LANDER):
    return lander_synthesis.synthesise(context, settings, anchors_for(context.num_classes), BOUND)


BOTH = pytest.mark.parametrize("synthesise", [by_target, by_lander])


@BOTH
def test_a_pool_has_the_size_and_the_range_of_images(context, synthesise):
    pool = synthesise(context)
    assert pool.images.shape == ({by_target: 36, by_lander: 24}[synthesise], 8, 8, 1)
    assert pool.images.dtype == torch.uint8
    assert pool.labels.min() >= 0
    assert pool.labels.max() < context.num_classes
    assert len(pool.images.unique()) > 10


@BOTH
def test_the_teacher_stays_as_it_was(context, synthesise):
    before = copy.deepcopy(context.teacher.state_dict())
    synthesise(context)
    after = context.teacher.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not context.teacher.training
    assert all(p.grad is None or not p.grad.any() for p in context.teacher.parameters())
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in context.teacher.modules())


@BOTH
def test_images_are_a_function_of_seed_and_task(context, synthesise):
    torch.manual_seed(1)
    np.random.seed(1)
    first = synthesise(context).images
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(synthesise(context).images, first)
    assert torch.equal(torch.get_rng_state(), state)
    for other in ({"seed": 8}, {"task": 1}):
        elsewhere = replace(context, **other)
        assert not torch.equal(synthesise(elsewhere).images, first)


@pytest.mark.parametrize("meta", ["fomaml", "reptile", None])
def test_captured_steps_make_the_same_images(context, meta):
    more = {"rounds": 3, "warmup": 1, "batch": 12, "steps": 4, "student_steps": 3}
    if meta is None:
        settings = LanderGenerationSettings(adversarial_delay=0, code=16, student_batch=12, **more)
        make = partial(by_lander, settings=settings)
    else:
        make = partial(by_target, settings=TargetGenerationSettings(meta=meta, **more))

    plain = make(context)
    with simulated_gpu():
        captured = make(replace(context, repeat=repeat))
    assert torch.equal(captured.images, plain.images)


@BOTH
def test_no_graph_of_an_earlier_step_is_alive_when_one_is_captured(context, synthesise):
    """Autograd goes on in the stream in which a parameter's node was made, as long as any graph holds that node."""
    before = graphs()
    alive: list[int] = []

    def counted(work, touched):
        alive.append(len([t for t in graphs() if not any(t is other for other in before)]))
        return work

    synthesise(replace(context, repeat=counted))
    assert alive
    assert set(alive) == {0}


def graphs():
    gc.collect()
    return [o for o in gc.get_objects() if type(o) is torch.Tensor and o.grad_fn is not None]


@pytest.mark.parametrize(("synthesise", "settings"), [(by_target, ONE_TARGET), (by_lander, ONE_LANDER)])
@pytest.mark.parametrize(("shape", "name"), [((10, 7, 3), "small-cnn"), ((9, 12, 3), "resnet18")])
def test_other_networks_sizes_and_channels(synthesise, settings, shape, name):
    noise = np.random.default_rng(0).integers(0, 256, (4, *shape)).astype(np.uint8)
    labels = np.array([0, 1, 0, 1])
    dataset = Dataset("n", noise, labels, noise, labels, ("a", "b"), (0.5,) * 3, (0.2,) * 3, Augmentation(2, True))
    teacher = frozen(network_for(shape, classes=2, name=name))
    pool = synthesise(SynthesisContext(teacher, device_images(dataset), 2, ("a", "b"), seed=1, task=0), settings)
    assert pool.images.shape[1:] == shape


@BOTH
def test_a_single_class_is_legal(context, synthesise):
    teacher = frozen(network_for(classes=1))
    pool = synthesise(SynthesisContext(teacher, context.images, 1, ("only",), seed=1, task=0))
    assert (pool.labels == 0).all()


def test_target_images_come_to_look_like_their_class(context):
    settings = TargetGenerationSettings(
        rounds=4, warmup=3, batch=30, steps=20, student_steps=5, one_hot=5.0, batch_norm=1.0
    )
    assert agreement(context, by_target(upright(context), settings)) > 0.5  # one in six by chance


def test_lander_images_come_to_look_like_their_class(context):
    settings = LanderGenerationSettings(
        rounds=3, warmup=3, batch=30, steps=15, student_steps=10, input_statistics="data"
    )
    assert agreement(context, by_lander(upright(context), settings)) > 0.6


def upright(context):
    """A mirrored square is one of another class."""
    return replace(context, images=device_images(toy_dataset(Augmentation())))


def test_agreement_counts_the_teachers_answers(context):
    images = context.images.images[:48]  # two classes of 24
    labels = context.images.labels[:48]
    pool = SyntheticPool([images[:24], images[24:]], [labels[:24], 1 - labels[24:]])
    right = context.teacher(context.images.normalise(images.float())).logits.argmax(1) == labels
    assert agreement(context, pool) == pytest.approx(float(right[:24].sum()) / 48)


def test_presets_follow_the_size_of_the_images():
    assert recipe_for(TargetGenerationSettings(), 32) == Recipe(10, "fomaml", 2e-3, 0.5, 10.0, 20.0)
    assert recipe_for(TargetGenerationSettings(), 8) == recipe_for(TargetGenerationSettings(), 32)
    assert recipe_for(TargetGenerationSettings(), 64) == Recipe(50, "reptile", 2e-4, 0.1, 0.1, 5.0)
    assert recipe_for(TargetGenerationSettings(preset="small"), 64).steps == 10
    assert recipe_for(TargetGenerationSettings(preset="large", steps=3), 32) == Recipe(
        3, "reptile", 2e-4, 0.1, 0.1, 5.0
    )


def test_the_defaults_make_10240_images():
    target, lander = TargetGenerationSettings(), LanderGenerationSettings()
    assert target.rounds * target.batch == lander.rounds * lander.batch == 10_240
    assert (target.warmup, target.student_steps, target.adversarial, target.lr_latent) == (20, 400, 1.0, 0.01)
    assert (lander.warmup, lander.steps, lander.student_steps, lander.lr) == (10, 40, 50, 2e-3)
    assert (lander.one_hot, lander.batch_norm, lander.adversarial, lander.temperature) == (0.5, 1.0, 1.0, 20.0)


def test_first_order_maml_adds_gradients_up():
    shared, fast = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    shared.weight.grad = torch.zeros(1, 2)
    for x in (torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]])):
        fast.zero_grad()
        fast(x).sum().backward()
        add_gradients(shared, fast)
    assert shared.weight.grad.tolist() == [[4.0, 7.0]]
    assert fast.weight.grad.tolist() == [[3.0, 5.0]]


def test_reptile_moves_the_shared_generator_towards_the_copy():
    shared, fast = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        shared.weight.copy_(torch.tensor([[1.0, 1.0]]))
        fast.weight.copy_(torch.tensor([[0.0, 3.0]]))
    add_differences(shared, fast, 67.0)
    assert shared.weight.grad.tolist() == [[67.0, -134.0]]


@pytest.mark.parametrize("kind", ["fomaml", "reptile"])
def test_a_round_moves_the_shared_generator_and_keeps_the_best_images(context, kind):
    settings = TargetGenerationSettings(batch=8, steps=3, meta=kind)
    generator = ImageGenerator(settings.latent, context.image_shape)
    before = copy.deepcopy(generator.state_dict())
    maker = SharedGenerator(context, settings, recipe_for(settings, 8), generator)
    images, labels = maker.make_batch(0, None)
    assert images.shape == (8, 1, 8, 8)
    assert not images.requires_grad
    assert len(labels) == 8
    assert any(not torch.equal(before[n], p) for n, p in generator.named_parameters())


def test_the_images_kept_are_those_of_the_lowest_loss(context, monkeypatch):
    settings = TargetGenerationSettings(batch=4, steps=4)
    made, losses = [], iter([3.0, 1.0, 2.0, 5.0])
    maker = SharedGenerator(context, settings, recipe_for(settings, 8), ImageGenerator(256, (8, 8, 1)))

    def loss(inputs, labels, student):
        made.append(inputs.detach())
        return inputs.sum() * 0 + next(losses)

    monkeypatch.setattr(maker, "_loss", loss)
    monkeypatch.setattr(maker.probe, "remember", lambda: None)
    plain = upright(context)
    maker.context = plain
    images, _ = maker.make_batch(0, None)
    assert torch.allclose(plain.images.normalise(images.permute(0, 2, 3, 1) * 255), made[1])


@pytest.mark.parametrize(("classes", "size"), [(6, 256), (100, 256), (3, 2), (1, 5)])
def test_labels_are_balanced(classes, size):
    labels = balanced_labels(classes, size, np.random.default_rng(0))
    counts = np.bincount(labels, minlength=classes)
    assert len(labels) == size
    assert counts.min() >= size // classes
    assert (labels[: size // classes * classes] == np.tile(np.arange(classes), size // classes)).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_no_image_of_a_round_is_made_twice_however_few_classes_there_are(context, classes):
    few = replace(context, teacher=frozen(network_for(classes=classes)), num_classes=classes)
    images, labels = AnchoredGenerator(few, SMALL_LANDER, anchors_for(classes), BOUND).make_batch(0, None)
    assert labels.bincount().tolist() == [12 // classes] * classes
    apart = torch.cdist(images.flatten(1), images.flatten(1)) + torch.eye(12)
    assert float(apart.min()) > 1e-3


def test_input_statistics_are_learned_unless_those_of_the_data_are_wanted(context):
    for source, moves in (("learned", True), ("data", False)):
        settings = SMALL_LANDER.model_copy(update={"input_statistics": source})
        maker = AnchoredGenerator(context, settings, anchors_for(), BOUND)
        assert (maker.mean.tolist(), maker.std.tolist()) == ([0.5], pytest.approx([0.2]))
        maker.make_batch(0, None)
        assert (maker.mean.tolist() != [0.5]) == moves
        assert (maker.std.tolist() != pytest.approx([0.2])) == moves


def test_the_warm_up_of_lander_is_not_stored(context):
    settings = SMALL_LANDER.model_copy(update={"student_steps": 0})
    pool = by_lander(context, settings)
    maker = AnchoredGenerator(context, settings, anchors_for(), BOUND)
    rounds = [maker.make_batch(r, None)[0] for r in range(2)]
    stored = (rounds[1].clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1)
    assert torch.equal(pool.batches[0], stored)
    assert len(pool.batches) == 2


def test_a_student_is_a_fresh_network_of_the_same_kind(trained, context):
    student = new_student(context)
    assert [p.shape for p in student.parameters()] == [p.shape for p in trained.parameters()]
    assert all(not p.requires_grad for p in student.parameters())
    convolution = student.backbone.layers[1][0].weight
    assert float(convolution.std()) == pytest.approx((2 / (8 * 9 + 8 * 9)) ** 0.5, rel=0.15)
    norm = student.backbone.layers[1][1]
    assert float((norm.weight - 1).abs().max()) < 0.1
    assert norm.weight.std() > 0
    assert not norm.running_mean.any()
    assert (norm.running_var == 1).all()
    assert torch.equal(new_student(context).head.weight, student.head.weight)
    assert not torch.equal(new_student(replace(context, seed=8)).head.weight, student.head.weight)


@pytest.mark.parametrize("mapping_weight", [0.0, 5.0])
def test_a_student_comes_closer_to_its_teacher(trained, context, mapping_weight):
    student = new_student(context)
    images = context.images.plain(torch.arange(0, 144, 3))

    def distance():
        with torch.no_grad():
            mine, theirs = student(images), trained(images)
            maps = student.extras["mapping"](mine.features), trained.extras["mapping"](theirs.features)
        return float(softened_divergence(mine.logits, theirs.logits, 4.0)), float(F.mse_loss(*maps))

    def batches():
        while True:
            yield images

    before = distance()
    optimiser = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9)
    distil(student, context, batches(), optimiser, steps=60, temperature=4.0, mapping_weight=mapping_weight)
    assert distance()[0] < 0.5 * before[0]
    assert (distance()[1] < 0.5 * before[1]) == (mapping_weight > 0)
    assert not student.training
    assert all(not p.requires_grad for p in student.parameters())


@pytest.mark.parametrize(
    ("maker", "synthesise", "expected"),
    [(SharedGenerator, by_target, [0, 0, 1, 1]), (AnchoredGenerator, by_lander, [0, 0, 0, 1, 1])],
)
def test_the_student_takes_part_only_after_the_warm_up(context, monkeypatch, maker, synthesise, expected):
    took_part, make_batch = [], maker.make_batch

    def noting(self, round, student):
        took_part.append(student is not None)
        return make_batch(self, round, student)

    monkeypatch.setattr(maker, "make_batch", noting)
    small = {"rounds": 4, "batch": 4, "steps": 1, "student_steps": 1}
    if synthesise is by_target:
        by_target(context, TargetGenerationSettings(warmup=2, **small))
    else:
        by_lander(context, LanderGenerationSettings(warmup=1, code=4, **small))
    assert took_part == expected


def test_generated_pixels_are_cropped_and_flipped_with_a_gradient(context):
    codes = torch.rand(6, 1, 8, 8, requires_grad=True)
    views = Views(context, 6)
    views.draw(np.random.default_rng(0))
    pixels = views.of(codes)
    assert pixels.shape == (6, 8, 8, 1)
    pixels.sum().backward()
    # A crop with one pixel of padding drops at most one row and one column, and repeats nothing.
    per_image = (codes.grad / 255).flatten(1)
    assert set(per_image.unique().tolist()) <= {0.0, 1.0}
    assert ((per_image == 0).sum(1) <= 15).all()
    assert (per_image == 0).any()


def test_randomness_has_an_address(context):
    rng = partial(context.rng, "student", 3)
    assert rng(0).integers(1 << 30) == context.rng("student", 3, 0).integers(1 << 30)
    assert rng(0).integers(1 << 30) != rng(1).integers(1 << 30)
