"""Images that stay in a memory map are fed to the device, with the values that resident ones have."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfeat.core.errors import ConfigError, DataError
from fedfeat.data import Augmentation, Dataset, DataSettings, augment, cache, load_dataset
from fedfeat.data.augment import DeviceImages, plan_epoch
from fedfeat.data.dataset import chunks
from fedfeat.engines.factory import make_engine
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from simulated_gpu import simulate
from toy import toy_config, toy_dataset, untimed


@pytest.fixture
def mapped(tmp_path: Path) -> Dataset:
    toy = toy_dataset()
    maps = {}
    for name in ("train_images", "test_images"):
        np.save(tmp_path / f"{name}.npy", getattr(toy, name))
        maps[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    return replace(toy, **maps)


def device_images(dataset: Dataset, device: str = "cpu", fed: bool = False) -> DeviceImages:
    return DeviceImages(
        dataset.train_images,
        dataset.train_labels,
        mean=dataset.mean,
        std=dataset.std,
        augmentation=dataset.augmentation,
        device=torch.device(device),
        fed=fed,
    )


def test_a_memory_map_is_read_where_it_is(mapped: Dataset, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(augment, "HELD_BYTES", 1000)  # so that pages are let go between batches
    held, fed = device_images(toy_dataset()), device_images(mapped)
    assert (held.on_disk, fed.on_disk) == (False, True)
    assert fed.images.data_ptr() == mapped.train_images.ctypes.data
    plan = plan_epoch(np.random.default_rng(0), len(fed), fed.augmentation)
    for rows in (slice(0, 50), slice(20, 21), slice(0, 50)):
        torch.testing.assert_close(held.plain(plan.order[rows]), fed.plain(plan.order[rows]), rtol=0, atol=0)
        both = [images.augmented(plan.order[rows], plan, rows) for images in (held, fed)]
        torch.testing.assert_close(*both, rtol=0, atol=0)


@pytest.mark.parametrize("on_disk", [True, False])
def test_fed_images_stay_on_the_host_and_batches_go_to_the_device(mapped: Dataset, on_disk: bool):
    images = device_images(mapped if on_disk else toy_dataset(), device="meta", fed=True)
    assert (images.images.device.type, images.device.type, images.labels.device.type) == ("cpu", "meta", "meta")
    assert not images.resident
    assert images.on_disk is on_disk
    gathered = images.gather(torch.tensor([3, 1]))
    assert (gathered.device.type, gathered.shape) == ("meta", (2, *mapped.image_shape))


def result(dataset: Dataset, folder: Path):
    config = toy_config("fedcbdr+feat")
    experiment = Experiment(config, dataset)
    return untimed(experiment.run(experiment.new_folder(folder), Progress(), ()))


def test_a_run_fed_from_disk_ends_with_the_same_bytes(mapped: Dataset, tmp_path: Path):
    fed, held = (result(d, tmp_path / name) for name, d in (("fed", mapped), ("held", toy_dataset())))
    assert fed == held
    ends = [RunFolder.open(tmp_path / name).checkpoints.peek()[0].weights for name in ("fed", "held")]
    assert torch.equal(*ends)


def test_steps_are_not_captured_on_images_that_are_fed(mapped: Dataset, monkeypatch: pytest.MonkeyPatch):
    config = toy_config("finetune", engine={"vectorised": 2})
    experiment = Experiment(config, mapped)
    engine = experiment.engine
    weights = engine.begin_task(0)
    requests = {k: {"weights": weights} for k in range(3)}
    assert engine.vectorised.takes(requests)
    monkeypatch.setattr(DeviceImages, "resident", False)
    assert not engine.vectorised.takes(requests)


def test_the_cuda_engine_refuses_images_that_it_has_no_room_for(mapped: Dataset, monkeypatch: pytest.MonkeyPatch):
    simulate(monkeypatch)
    config = toy_config("finetune", engine={"name": "cuda"})
    scenario = Experiment(toy_config("finetune"), mapped).scenario
    make_engine(config, mapped, scenario, config.build_method())
    size = mapped.train_images.nbytes + mapped.test_images.nbytes
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda *_: (2 * size - 1, 2 * size))
    with pytest.raises(ConfigError, match=r"more than half of the .* free; use engine\.name = 'inprocess'.*image_size"):
        make_engine(config, mapped, scenario, config.build_method())


def test_without_a_cache_more_images_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encode):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            (tmp_path / name / f"{i}.png").write_bytes(encode(np.zeros((8, 8, 3), np.uint8)))
    settings = DataSettings(name="folder", path=str(tmp_path))
    monkeypatch.setattr(cache, "memory_bytes", lambda: 8 * 8 * 8 * 3 - 1)
    with pytest.raises(DataError, match=r"8 images of 8x8x3 need 0\.0 GB.*'fedfeat data check'"):
        load_dataset(settings, write_cache=False)
    assert len(load_dataset(settings).train_images) == 8
    with pytest.raises(DataError, match=r"data\.validation holds the training images in memory, but 8 images"):
        load_dataset(settings.model_copy(update={"validation": 0.5}))


def test_what_decoding_needs_is_said_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encode, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "a").mkdir()
    for i in range(5):
        (tmp_path / "a" / f"{i}.png").write_bytes(encode(np.zeros((8, 8, 3), np.uint8)) if i < 4 else b"bad")
    monkeypatch.setattr(cache, "TOLD_BYTES", 1)
    with caplog.at_level("INFO", "fedfeat.data"), pytest.raises(DataError, match=r"4\.png"):
        load_dataset(DataSettings(name="folder", path=str(tmp_path)))
    assert "train_images: 4 images of 8x8x3 are decoded once, to 0.0 GB in" in caplog.text


def test_a_disk_without_room_is_found_before_decoding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encode, data_home: Path
):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            (tmp_path / name / f"{i}.png").write_bytes(encode(np.zeros((8, 8, 3), np.uint8)))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "posix_fallocate", full)
    with pytest.warns(UserWarning, match="decoded images are not cached.*No space left"):
        assert len(load_dataset(DataSettings(name="folder", path=str(tmp_path))).train_images) == 8
    assert list((data_home / "decoded").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")
@pytest.mark.parametrize("walk", ["chunks", "gather"])
def test_pages_of_a_memory_map_do_not_pile_up(tmp_path: Path, walk: str, monkeypatch: pytest.MonkeyPatch):
    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssFile"))

    shape = (2000, 100, 100, 3)  # 60 MB
    np.lib.format.open_memmap(tmp_path / "images.npy", mode="w+", dtype=np.uint8, shape=shape).flush()
    images, most = np.load(tmp_path / "images.npy", mmap_mode="r"), 0
    monkeypatch.setattr(augment, "HELD_BYTES", 4 << 20)
    options = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "augmentation": Augmentation(), "device": torch.device("cpu")}
    fed = DeviceImages(images, np.zeros(len(images), np.int64), **options)
    before = resident()
    parts = chunks(images) if walk == "chunks" else (fed.gather(rows) for rows in torch.arange(2000).split(50))
    for part in parts:
        part.sum()
        most = max(most, resident())
    assert most - before < 20 << 20
