"""The teacher of CLIP2FL: its cache file, its live models, and the command that turns one into the other."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError, MissingExtra
from fedfeat.data.augment import DeviceImages
from fedfeat.data.dataset import NO_AUGMENTATION
from fedfeat.methods.clip2fl.teacher import TeacherSettings, make_teacher
from fedfeat.methods.clip2fl.teacher_cache import TeacherCache, read_cache, rows_of, text_rows, write_cache
from toy import toy_dataset, write_toy

NAMES = ("cat", "dog", "sea")
LABELS = torch.tensor([2, 0, 1, 0, 2, 2])


def small_cache(labels=LABELS):
    features = torch.arange(18.0).view(6, 3) + 1
    return TeacherCache(features, torch.eye(3), NAMES, labels, "small")


def images_of(labels):
    pixels = np.zeros((len(labels), 4, 4, 1), dtype=np.uint8)
    pixels[:, 0, 0, 0] = np.arange(len(labels))
    return DeviceImages(
        pixels, np.array(labels), mean=(0.0,), std=(1.0,), augmentation=NO_AUGMENTATION, device=torch.device("cpu")
    )


def cached(path):
    return make_teacher(TeacherSettings(backend="cache", path=str(path)))


def test_a_cache_comes_back_as_it_was_written(tmp_path):
    write_cache(tmp_path / "c.safetensors", small_cache())
    back = read_cache(tmp_path / "c.safetensors")
    assert back.image_features.dtype == torch.float16
    assert torch.equal(back.image_features.float(), small_cache().image_features)
    assert back.class_names == NAMES
    assert back.labels.tolist() == LABELS.tolist()
    assert back.model_id == "small"


def test_an_npz_is_read_too(tmp_path):
    cache = small_cache()
    arrays = {"image_features": cache.image_features.numpy(), "text_features": cache.text_features.numpy()}
    np.savez(tmp_path / "c.npz", class_names=np.array(NAMES), model_id=np.array("clip"), **arrays)
    back = read_cache(tmp_path / "c.npz")
    assert (back.class_names, back.labels, back.model_id) == (NAMES, None, "clip")


def test_samples_are_matched_class_by_class():
    """Classes arrive in another order, the last is still to come; samples keep their order within a class."""
    labels = torch.tensor([1, 0, 2, 1, 0, 0])  # cat, sea, a class to come, cat, sea, sea
    cache = small_cache(torch.tensor([0, 2, 1, 0, 2, 2]))
    assert rows_of(cache, labels, ("sea", "cat")).tolist() == [0, 1, -1, 3, 4, 5]
    assert text_rows(cache, ("sea", "cat")).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_cache_of_all_classes_serves_some():
    labels = torch.tensor([0, 0, 1])  # the run keeps cat and dog only
    assert rows_of(small_cache(), labels, ("cat", "dog")).tolist() == [1, 3, 2]


def test_a_cache_without_labels_needs_a_row_per_sample():
    assert rows_of(small_cache(None), torch.zeros(6), ("cat",)).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="has 6 images and the training set 5"):
        rows_of(small_cache(None), torch.zeros(5), ("cat",))


def test_a_cache_of_other_data_is_refused():
    with pytest.raises(ConfigError, match="has 2 images of 'cat' and the training set 3"):
        rows_of(small_cache(), torch.tensor([0, 0, 0]), ("cat",))
    with pytest.raises(ConfigError, match="knows no class 'cow'"):
        rows_of(small_cache(), torch.tensor([0, 0, 0]), ("cow",))


def test_cached_features_are_unit_vectors_of_the_samples_asked_for(tmp_path):
    write_cache(tmp_path / "c.safetensors", small_cache())
    teacher = cached(tmp_path / "c.safetensors")
    images = images_of([0, 1, 2, 1, 0, 0])  # sea, cat, dog in order of arrival
    found = teacher.images(images, torch.tensor([3, 0]), ("sea", "cat", "dog"))
    expected = torch.nn.functional.normalize(small_cache().image_features)[[3, 0]]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(teacher.text(("sea",)), torch.eye(3)[2:])
    assert teacher.identity == "cache-small"


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (small_cache()._replace(text_features=torch.eye(4)), r"got \[6, 3\] and \[4, 4\]"),
        (small_cache()._replace(class_names=("cat", "dog")), "3 text features for 2 class names"),
        (small_cache()._replace(labels=LABELS[:4]), "4 labels for 6 images"),
    ],
)
def test_an_inconsistent_cache_is_one_sentence(cache, words, tmp_path):
    write_cache(tmp_path / "c.safetensors", cache)
    with pytest.raises(ConfigError, match=words):
        read_cache(tmp_path / "c.safetensors")


@pytest.mark.parametrize("name", ["c.safetensors", "c.npz"])
def test_a_damaged_cache_is_refused_when_the_method_is_composed(name, tmp_path):
    (tmp_path / name).write_bytes(b"nothing of the kind")
    table = {"teacher": {"backend": "cache", "path": str(tmp_path / name)}}
    with pytest.raises(ConfigError, match="is not a teacher cache"):
        make_config({"method": "fedcbdr+clip2fl", "clip2fl": table})


def test_a_pickle_is_not_opened(tmp_path):
    torch.save({}, tmp_path / "c.pt")
    with pytest.raises(ConfigError, match=r"expected a .safetensors or .npz file, got c.pt"):
        cached(tmp_path / "c.pt")


@pytest.mark.parametrize("backend", ["cache", "open_clip", "transformers", "openai_clip"])
def test_a_teacher_that_is_not_there_names_the_ways(backend, tmp_path):
    for path in (None, str(tmp_path / "none")):
        with pytest.raises(ConfigError, match="one of four ways: backend = cache"):
            make_teacher(TeacherSettings(backend=backend, path=path))
    with pytest.raises(ConfigError, match="one of four ways"):
        make_teacher(TeacherSettings(path=str(tmp_path)))


def test_a_missing_package_is_named_when_the_method_is_composed(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    table = {"teacher": {"backend": "open_clip", "path": str(tmp_path)}}
    with pytest.raises(MissingExtra, match="needs the package 'open_clip'"):
        make_config({"method": "fedcbdr+clip2fl", "clip2fl": table})


class Counting(nn.Module):
    """A model in the manner of open_clip that counts how many images it sees."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def encode_text(self, tokens):
        return tokens.float()

    def encode_image(self, pixels):
        self.seen += len(pixels)
        return pixels.flatten(1)[:, :2] + 1


@pytest.fixture
def open_clip(monkeypatch):
    pytest.importorskip("PIL")
    model = Counting()
    module = types.ModuleType("open_clip")
    preprocess = lambda image: torch.from_numpy(np.array(image)).float()  # noqa: E731
    module.create_model_and_transforms = lambda arch, **_: (model, None, preprocess)
    module.get_tokenizer = lambda arch: lambda prompts: torch.tensor([[len(p), 1] for p in prompts])
    monkeypatch.setitem(sys.modules, "open_clip", module)
    return model


def test_a_live_teacher_encodes_each_sample_once(open_clip, tmp_path):
    teacher = make_teacher(TeacherSettings(backend="open_clip", path=str(tmp_path)))
    images = images_of([0, 1, 2, 1, 0, 0])
    first = teacher.images(images, torch.tensor([1, 2, 1]), NAMES)
    assert open_clip.seen == 2
    again = teacher.images(images, torch.tensor([2, 3]), NAMES)
    assert open_clip.seen == 3
    assert torch.equal(first[1], again[0])
    torch.testing.assert_close(first.norm(dim=1), torch.ones(3))
    prompt = torch.tensor([[len("a photo of a sea"), 1.0]])
    torch.testing.assert_close(teacher.text(("sea",)), torch.nn.functional.normalize(prompt))


def test_build_writes_what_a_run_can_read(open_clip, tmp_path):
    write_toy(tmp_path / "toy.npz")
    out = tmp_path / "made" / "toy.safetensors"
    options = ["--model", str(tmp_path), "--out", str(out), "--data-path", str(tmp_path / "toy.npz")]
    done = CliRunner().invoke(app, ["teacher", "build", "npz", *options])
    assert done.exit_code == 0, done.output
    assert "144 images and 6 classes in 2 dimensions" in done.output
    back = read_cache(out)
    assert back.labels.tolist() == toy_dataset().train_labels.tolist()
    assert open_clip.seen == 144
    assert back.model_id == f"open_clip-{tmp_path.name}"
    make_config({"method": "fedcbdr+clip2fl", "clip2fl": {"teacher": {"backend": "cache", "path": str(out)}}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--backend": "cache"}, "cannot encode images"),
        ({"--out": "x.npz"}, "ends in .safetensors"),
        ({"--model": "/no/such/model"}, "does not exist"),
    ],
)
def test_build_refuses_in_one_sentence(changes, words, open_clip, tmp_path):
    options = {"--model": str(tmp_path), "--out": str(tmp_path / "c.safetensors"), **changes}
    arguments = [text for pair in options.items() for text in pair]
    done = CliRunner().invoke(app, ["teacher", "build", "digits", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)
