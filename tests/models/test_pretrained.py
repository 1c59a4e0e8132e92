"""Pre-trained backbones: the model's own features, only trained numbers in the vector, and nothing but safetensors."""

from __future__ import annotations

import json
import shutil
import socket
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones import save_vit_s
from fedfeat.algorithm.method import linear_head
from fedfeat.core.errors import CheckpointError, ConfigError
from fedfeat.engines.base import BaseEngine
from fedfeat.models import FlatModel, Network, PixelScale, PretrainedBackbone, build_network
from fedfeat.models.build import ModelSettings
from fedfeat.models.model_folder import load_model
from fedfeat.runs.experiment import Experiment, resume, start
from fedfeat.runs.trained import load_trained
from toy import each_part_once, toy_config, toy_dataset, write_toy
from toy_runs import Run, run_toy
from vision_models import MEAN, STD, VIT, save_model

# Their imports take seconds, so only the worker that runs these tests does it.
absent = any(find_spec(package) is None for package in ("transformers", "peft"))
pytestmark = pytest.mark.skipif(absent, reason="needs the extra 'hf'")

SMALL_CONV = {"image_size": 32, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 2}
SMALL_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
SMALL_SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]} | {
    "window_size": 2
}
SMALL_DINO = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
DATA = PixelScale((0.25, 0.5, 0.75), (0.25, 0.2, 0.1))
QUICK = {"train": {"batch": 16, "lr": 0.1}}


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "vit")


def network_of(folder: Path, shape: tuple[int, int, int] = (8, 8, 3), **settings: Any) -> Network:
    chosen = ModelSettings(name="hf", path=str(folder), **settings)
    return build_network(chosen, shape, linear_head, seed=1, num_classes=4, pixels=DATA)


def backbone_of(network: Network) -> PretrainedBackbone:
    assert isinstance(network.backbone, PretrainedBackbone)
    return network.backbone


def class_token(outputs: Any) -> Tensor:
    token: Tensor = outputs.last_hidden_state[:, 0]
    return token


def own_pooling(outputs: Any) -> Tensor:
    pooled: Tensor = outputs.pooler_output.flatten(1)
    return pooled


@pytest.mark.parametrize(
    ("kind", "shape", "size", "feature"),
    [
        ("ViT", {}, 8, class_token),
        ("Dinov2", SMALL_DINO, 16, class_token),
        ("ConvNext", SMALL_CONV, None, own_pooling),
        ("ResNet", SMALL_RESNET, None, own_pooling),
        ("Swin", SMALL_SWIN, 16, own_pooling),
    ],
)
def test_features_are_those_of_the_model_itself(
    kind: str, shape: dict[str, Any], size: int | None, feature: Any, tmp_path: Path
) -> None:
    """Pixels are brought to the model's scale and size by hand, and given to the model that transformers loads."""
    folder = save_model(tmp_path / kind, kind, preprocessor={"image_mean": MEAN, "image_std": STD}, **shape)
    given = (12, 12) if size else (32, 32)
    pixels = torch.rand(5, 3, *given, generator=torch.Generator().manual_seed(0))
    mean, std, own_mean, own_std = (torch.tensor(v).view(1, 3, 1, 1) for v in (*DATA, MEAN, STD))
    ours = network_of(folder, (*given, 3), tune="nothing").features((pixels - mean) / std)
    wanted = (pixels - own_mean) / own_std
    if size:
        wanted = F.interpolate(wanted, (size, size), mode="bilinear", antialias=True)
    with torch.no_grad():
        transformers = import_module("transformers")
        theirs = feature(getattr(transformers, f"{kind}Model").from_pretrained(folder).eval()(wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_size_and_scale_are_those_of_the_folder_unless_told_otherwise(tmp_path: Path) -> None:
    said = {"size": {"shortest_edge": 20}, "crop_size": {"height": 12, "width": 12}, "do_normalize": False}
    folder = save_model(tmp_path / "vit", preprocessor={**said, "image_mean": MEAN, "image_std": STD})
    loaded = load_model("hf", folder)
    assert (loaded.size, loaded.pixels, loaded.channels) == (12, None, 3)
    assert load_model("hf", folder, 16).size == 16
    grey = network_of(folder, (8, 8, 1), image_size=16)
    x = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(grey.features(x), grey.features(x.expand(-1, 3, -1, -1)))
    with pytest.raises(ConfigError, match=r"model\.image_size: this model cannot take .* 3 pixels .*; set another"):
        network_of(folder, image_size=3)
    with pytest.raises(ConfigError, match=r"takes images of 3 channels, and the data set's have 4"):
        network_of(folder, (8, 8, 4))


@pytest.mark.parametrize(("tune", "count"), [("nothing", 0), ("lora", 4 * 2 * 2 * 8 * 16), ("all", 9808)])
def test_the_vector_holds_what_is_trained_and_nothing_else(tune: Any, count: int, vit: Path) -> None:
    network = network_of(vit, tune=tune)
    network.head.grow(4, 0)
    model = FlatModel(network)
    assert model.num_trainable == len(model.vector) == count + 4 * 17
    assert all(".lora_" in name for name in model.layout if name.startswith("backbone.") and tune == "lora")
    assert sum(p.numel() for p in network.backbone.parameters() if p.requires_grad) == count


def test_copies_share_what_is_frozen(vit: Path) -> None:
    network = network_of(vit)
    network.head.grow(4, 0)
    twin = network.twin()
    frozen = network.frozen_names()
    for (name, a), (_, b) in zip(network.named_parameters(), twin.named_parameters(), strict=True):
        assert (a.data_ptr() == b.data_ptr()) == (name in frozen), name


def test_running_statistics_of_a_frozen_model_stay(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "resnet", "ResNet", **SMALL_RESNET)
    run = run_toy(tmp_path, "finetune", model={"name": "hf", "path": str(folder), "tune": "nothing"}, **QUICK)
    network = run.experiment.engine.network
    assert set(run.experiment.engine.model.layout) == {"head.weight", "head.bias"}
    fresh = load_model("hf", folder).module
    theirs = dict(fresh.named_buffers())
    statistics = [(n, b) for n, b in backbone_of(network).module.named_buffers() if "running" in n]
    assert statistics
    assert all(torch.equal(b, theirs[n]) for n, b in statistics)
    trained = network_of(folder, tune="all")
    trained.head.grow(2, 0)
    assert any("running_mean" in name for name in FlatModel(trained).layout)


@pytest.fixture(scope="module")
def trained(vit: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("run")
    return run_toy(folder, "herding+feat", model={"name": "hf", "path": str(vit)}, **QUICK), folder / "herding-feat"


def test_merged_and_unmerged_adapters_predict_the_same(trained: tuple[Run, Path]) -> None:
    network = trained[0].experiment.engine.network.eval()
    backbone = backbone_of(network)
    adapted = [m for m in backbone.modules() if hasattr(m, "lora_B")]
    assert len(adapted) == 8
    assert all(m.lora_B["default"].weight.abs().max() > 1e-4 for m in adapted), "training moved every adapter"
    merged = backbone.merged()
    assert not any(hasattr(m, "lora_A") for m in merged.modules())
    assert type(merged.module.layers[0].attention.q_proj) is nn.Linear  # type: ignore[index, union-attr]
    x = torch.rand(16, 1, 8, 8)
    with torch.no_grad():
        before = backbone(x)
        torch.testing.assert_close(merged(x), before, rtol=1e-4, atol=1e-5)
        for module in adapted:
            module.lora_B["default"].weight.zero_()  # merged copies are independent of what becomes of the original
        torch.testing.assert_close(merged(x), before, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(backbone(x), before, atol=1e-3)
        trained[0].experiment.engine.model.load(trained[0].progress.weights)


def test_files_of_a_run_hold_trained_numbers_and_name_the_rest(trained: tuple[Run, Path], vit: Path) -> None:
    run, folder = trained
    stored = next(folder.glob("checkpoint/*/server.safetensors")).stat().st_size
    assert stored < 4 * len(run.progress.weights) + 8000 < (vit / "model.safetensors").stat().st_size
    model = load_trained(folder)
    predicted = model.predict(toy_dataset().test_images).labels.numpy()
    labels = run.experiment.scenario.internal_labels(toy_dataset().test_labels)
    assert 100 * np.mean(predicted == labels) == pytest.approx(run.result["final_accuracy"])


def test_a_run_goes_on_with_the_same_weights_only_wherever_they_lie(vit: Path, tmp_path: Path) -> None:
    here = shutil.copytree(vit, tmp_path / "here")
    data = {"path": str(write_toy(tmp_path / "toy.npz"))}
    config = toy_config("finetune", data=data, model={"name": "hf", "path": str(here)}, **QUICK)

    class Stop(Exception):
        pass

    def stop(event: Any) -> None:
        if event["event"] == "task" and event["task"] == 2:
            raise Stop

    whole = start(config, tmp_path / "whole")
    with pytest.raises(Stop):
        start(config, tmp_path / "run", (stop,))
    there = here.rename(tmp_path / "there")
    written = tmp_path / "run" / "config.toml"
    written.write_text(written.read_text().replace(str(here), str(there)))
    kept = (there / "model.safetensors").read_bytes()
    save_model(there, **{**VIT, "num_attention_heads": 4})
    with pytest.raises(CheckpointError, match=r"model\.path: the model in .*there is not the one.*; point model\.path"):
        resume(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"is not the one that the run began with"):
        load_trained(tmp_path / "run")
    shutil.copytree(vit, there, dirs_exist_ok=True)
    assert (there / "model.safetensors").read_bytes() == kept
    assert resume(tmp_path / "run")["accuracy_matrix"] == whole["accuracy_matrix"]


def test_many_small_clients_train_at_once_as_one_by_one(vit: Path, tmp_path: Path) -> None:
    model = {"name": "hf", "path": str(vit)}
    runs = [
        run_toy(tmp_path / str(n), "finetune", model=model, engine={"vectorised": n}, scenario={"tasks": 1}, **QUICK)
        for n in (1, 3)
    ]
    torch.testing.assert_close(runs[0].progress.weights, runs[1].progress.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:calibrate")
@pytest.mark.parametrize("method", each_part_once())
def test_every_part_runs_on_adapters_or_says_why_not(method: str, vit: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"scenario": {"tasks": 2}, "train": {"rounds": 1, "local_epochs": 1, "batch": 16}}
    if method in ("target", "lander"):
        with pytest.raises(ConfigError, match=r"BatchNorm's running statistics, and this network has none"):
            run_toy(tmp_path, method, model={"name": "hf", "path": str(vit)}, **changes)
        return
    run = run_toy(tmp_path, method, model={"name": "hf", "path": str(vit)}, **changes)
    assert torch.isfinite(run.progress.weights).all()
    engine: BaseEngine = run.experiment.engine
    fresh = dict(network_of(vit, (8, 8, 1)).named_parameters())
    frozen = engine.network.frozen_names()
    for name, parameter in engine.network.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, fresh[name]), f"{name} is frozen and has changed"


def test_a_frozen_backbone_under_a_fixed_classifier_is_refused(vit: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.tune: with a frozen backbone .*; set model\.tune = 'lora'"):
        Experiment(toy_config("fedcbdr+feat", model={"name": "hf", "path": str(vit), "tune": "nothing"}), toy_dataset())


def test_noise_protects_adapters_without_another_setting(vit: Path) -> None:
    noise = {"clip": 1.0, "noise": 0.5}
    toy_config("finetune", model={"name": "hf", "path": str(vit)}, privacy=noise)
    with pytest.raises(ConfigError, match=r"privacy\.noise: .*; leave model\.tune = 'all' out"):
        toy_config("finetune", model={"name": "hf", "path": str(vit), "tune": "all"}, privacy=noise)


def test_settings_that_belong_to_other_models_are_refused() -> None:
    for table, message in (
        ({"name": "hf"}, "needs the folder of a model; set path"),
        ({"name": "resnet18", "path": "x", "lora_rank": 4}, r"path, lora_rank: only for name = 'hf' or 'timm'"),
        ({"name": "hf", "path": "x", "tune": "all", "lora_alpha": 1.0}, r"lora_alpha: only with tune = 'lora'"),
        ({"name": "hf", "path": "x", "features": "signed"}, r"features: only for backbones trained from scratch"),
    ):
        with pytest.raises(ConfigError, match=message):
            toy_config("finetune", model=table)


def test_layers_without_adapters_are_named(vit: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora_targets: .*\['dense'\]; this model has fc1, fc2, k_proj"):
        network_of(vit, lora_targets=("dense",))
    everywhere = network_of(vit, lora_targets=("fc1", "fc2"), lora_rank=2)
    assert sum(p.numel() for _, p in everywhere.trained_parameters()) == 4 * 2 * 2 * (16 + 32)


class TestFolders:
    """What a folder may hold, and what it may not do."""

    def refused(self, folder: Path | None, match: str) -> None:
        with pytest.raises(ConfigError, match=match) as caught:
            load_model("hf", folder)
        assert "\n" not in str(caught.value)
        assert ";" in str(caught.value)

    def test_what_is_not_a_model_is_refused(self, vit: Path, tmp_path: Path) -> None:
        self.refused(tmp_path / "gone", r"expected the folder of a model, got .*gone; .*nothing is downloaded")
        (tmp_path / "empty").mkdir()
        self.refused(tmp_path / "empty", r"has no config\.json")
        shutil.copytree(vit, tmp_path / "odd")
        (tmp_path / "odd" / "config.json").write_text('{"model_type": "nobody-knows"}')
        self.refused(tmp_path / "odd", "transformers cannot load .*odd")
        shutil.copytree(vit, tmp_path / "cut")
        (tmp_path / "cut" / "model.safetensors").write_bytes((vit / "model.safetensors").read_bytes()[:2000])
        self.refused(tmp_path / "cut", "transformers cannot load .*cut")
        shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        self.refused(save_model(tmp_path / "text", "Bert", **shape, vocab_size=10), "BertModel, which takes no images")

    def test_pickled_weights_are_not_read(self, vit: Path, tmp_path: Path) -> None:
        shutil.copytree(vit, tmp_path / "old")
        (tmp_path / "old" / "model.safetensors").rename(tmp_path / "old" / "pytorch_model.bin")
        self.refused(tmp_path / "old", r"only pytorch_model\.bin, which may run code when read; save .* safetensors")

    def test_missing_weights_are_not_drawn_at_random(self, vit: Path, tmp_path: Path) -> None:
        from safetensors.torch import load_file, save_file

        folder = shutil.copytree(vit, tmp_path / "part")
        weights = {n: t for n, t in load_file(folder / "model.safetensors").items() if n != "layernorm.weight"}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        self.refused(folder, r"lacks weights of its model \(layernorm\.weight\)")

    def test_code_of_the_folder_is_not_run_and_nothing_is_fetched(
        self, vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, marker = shutil.copytree(vit, tmp_path / "code"), tmp_path / "was-run"
        table = json.loads((folder / "config.json").read_text())
        named = {"AutoConfig": "mine.MyConfig", "AutoModel": "mine.MyModel"}
        (folder / "config.json").write_text(json.dumps({**table, "auto_map": named}))
        (folder / "mine.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")

        def connect(*_: object) -> None:
            raise AssertionError("the network was asked")

        monkeypatch.setattr(socket.socket, "connect", connect)
        assert type(load_model("hf", folder).module).__name__ == "ViTModel"
        (folder / "config.json").write_text(json.dumps({**table, "model_type": "mine", "auto_map": named}))
        self.refused(folder, "transformers cannot load .*code")
        assert not marker.exists()


@pytest.mark.slow
def test_the_documented_bytes_are_those_of_a_vit_s(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    folder = save_vit_s(tmp_path / "vit-s")
    for tune in ("all", "lora", "nothing"):
        network = network_of(folder, tune=tune, image_size=32)
        network.head.grow(10, 0)
        assert f"| `finetune` | `{tune}` |" in page
        row = next(line for line in page.splitlines() if line.startswith(f"| `finetune` | `{tune}` |"))
        assert row.split(" | ")[3] == f"{FlatModel(network).vector.nbytes:,}"


def test_a_model_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    module = timm.create_model("resnet10t", pretrained=False)
    stated = {"input_size": [3, 32, 32], "mean": MEAN, "std": STD}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet10t", "pretrained_cfg": stated}))
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    settings = ModelSettings(name="timm", path=str(tmp_path), tune="nothing")
    network = build_network(settings, (32, 32, 3), linear_head, seed=1, num_classes=4)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        wanted = module.eval().forward_head(module.forward_features(x), pre_logits=True)
    torch.testing.assert_close(network.features(x), wanted)
