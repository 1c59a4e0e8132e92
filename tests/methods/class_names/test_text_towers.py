"""Local models: a small real CLIP where the package is there, its calling conventions everywhere."""

import importlib.util
import json
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from fedfeat.core.errors import ConfigError, MissingExtra
from fedfeat.methods.class_names import TextSettings, class_features, encoder_name, text_width
from fedfeat.methods.class_names.towers import load_tower, require

WIDTH = 8


class Projected:
    """What transformers 5 returns: the projected features among other things."""

    def __init__(self, features):
        self.pooler_output = features
        self.last_hidden_state = features[:, None, :].repeat(1, 3, 2)


class SmallClip(nn.Module):
    def __init__(self, structured):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(128, WIDTH)
        self.pixels = nn.Linear(3, WIDTH)
        self.config = types.SimpleNamespace(projection_dim=WIDTH)
        self.wrap = Projected if structured else (lambda features: features)

    def get_text_features(self, input_ids, attention_mask):
        mask = attention_mask[:, :, None]
        return self.wrap((self.words(input_ids) * mask).sum(1) / mask.sum(1))

    def get_image_features(self, pixel_values):
        return self.wrap(self.pixels(pixel_values.mean(dim=(2, 3))))


def fake_transformers(structured, calls):
    """A module with the loaders that are used, around a small real model."""

    class Tokenizer:
        def __call__(self, prompts, **options):
            longest = max(map(len, prompts))
            ids = torch.tensor([[ord(c) for c in p.ljust(longest)] for p in prompts])
            mask = torch.tensor([[i < len(p) for i in range(longest)] for p in prompts]).long()
            return {"input_ids": ids, "attention_mask": mask}

    def processor(images, return_tensors):
        assert all(image.mode == "RGB" for image in images)
        return {"pixel_values": torch.stack([torch.from_numpy(np.array(i)).permute(2, 0, 1) / 255 for i in images])}

    def loader(make):
        def from_pretrained(path, local_files_only=False):
            calls.append((path, local_files_only))
            return make()

        return types.SimpleNamespace(from_pretrained=from_pretrained)

    module = types.ModuleType("transformers")
    module.AutoTokenizer = loader(Tokenizer)
    module.AutoModel = loader(lambda: SmallClip(structured))
    module.AutoImageProcessor = loader(lambda: processor)
    return module


@pytest.fixture(params=["tensor", "structured"])
def transformers(request, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "transformers", fake_transformers(request.param == "structured", calls))
    return calls


def test_both_return_types_give_the_projected_features(transformers, tmp_path):
    settings = TextSettings(encoder="transformers", path=str(tmp_path))
    found = class_features(settings, ("pine_tree", "sea"))
    words = SmallClip(False).words.weight
    prompt = "a photo of a sea"
    torch.testing.assert_close(found.features[1], words[[ord(c) for c in prompt]].mean(dim=0).detach())
    assert found.features.shape == (2, WIDTH)
    assert not found.features.requires_grad
    assert found.encoder == encoder_name(settings) == f"transformers-{tmp_path.name}"
    assert text_width(settings) == WIDTH
    assert all(local_only for _, local_only in transformers)


def test_images_go_through_the_models_own_preprocessing(transformers, tmp_path):
    pytest.importorskip("PIL")
    tower = load_tower("transformers", tmp_path)
    grey = np.full((2, 4, 4, 1), 51, dtype=np.uint8)
    found = tower.images(grey)
    expected = SmallClip(False).pixels(torch.full((1, 3), 0.2)).detach()
    torch.testing.assert_close(found, expected.repeat(2, 1))


def test_a_wrong_width_is_refused(monkeypatch, tmp_path):
    class Unprojected(SmallClip):
        def get_text_features(self, input_ids, attention_mask):
            return torch.zeros(len(input_ids), WIDTH + 1)

    module = fake_transformers(False, [])
    module.AutoModel = types.SimpleNamespace(from_pretrained=lambda *_, **__: Unprojected(False))
    monkeypatch.setitem(sys.modules, "transformers", module)
    with pytest.raises(ConfigError, match="width 8, got 9"):
        load_tower("transformers", tmp_path).text(["a"])


def test_a_language_model_gives_the_mean_of_its_tokens(monkeypatch, tmp_path):
    class Language(nn.Module):
        def forward(self, input_ids, attention_mask):
            return types.SimpleNamespace(last_hidden_state=input_ids[:, :, None].repeat(1, 1, 4).float())

    module = fake_transformers(False, [])
    module.AutoModel = types.SimpleNamespace(from_pretrained=lambda *_, **__: Language())
    monkeypatch.setitem(sys.modules, "transformers", module)
    tower = load_tower("transformers", tmp_path)
    assert tower.text(["ab", "c"])[:, 0].tolist() == [(97 + 98) / 2, 99]
    assert tower.images is None


def test_sentence_encoders(monkeypatch, tmp_path):
    class SentenceTransformer:
        def __init__(self, path, local_files_only, device):
            assert local_files_only

        def encode(self, prompts):
            return np.array([[len(p), 1.0] for p in prompts], dtype=np.float16)

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    settings = TextSettings(encoder="sentence-transformers", path=str(tmp_path), prompt="{class}")
    assert class_features(settings, ("sea", "seal")).features.tolist() == [[3, 1], [4, 1]]


@pytest.mark.parametrize("folder", [True, False])
def test_open_clip_takes_a_folder_or_a_checkpoint_with_quickgelu(folder, monkeypatch, tmp_path):
    asked = []

    class Model(nn.Module):
        def encode_text(self, tokens):
            return tokens.half()

    def create(arch, pretrained=None):
        asked.append((arch, pretrained))
        return Model(), None, None

    module = types.ModuleType("open_clip")
    module.create_model_and_transforms = create
    module.get_tokenizer = lambda arch: lambda prompts: torch.tensor([[len(p), 2] for p in prompts])
    monkeypatch.setitem(sys.modules, "open_clip", module)
    path = tmp_path if folder else tmp_path / "ViT-B-32.pt"
    if not folder:
        path.write_bytes(b"")
    settings = TextSettings(encoder="open_clip", path=str(path), prompt="{class}")
    found = class_features(settings, ("sea",))
    assert found.features.tolist() == [[3.0, 2.0]]
    assert found.features.dtype == torch.float32
    expected = (f"local-dir:{path}", None) if folder else ("ViT-B-32-quickgelu", str(path))
    assert asked[0] == expected
    assert ("quickgelu" in found.encoder) == (not folder)


def test_a_model_that_cannot_be_loaded_is_one_sentence(monkeypatch, tmp_path):
    module = fake_transformers(False, [])

    def fail(*_, **__):
        raise OSError("no config.json\nlong story")

    module.AutoModel = types.SimpleNamespace(from_pretrained=fail)
    monkeypatch.setitem(sys.modules, "transformers", module)
    with pytest.raises(ConfigError, match=r"cannot be loaded \(no config.json\); check the files"):
        load_tower("transformers", tmp_path)


@pytest.mark.parametrize("backend", ["open_clip", "transformers", "sentence-transformers", "openai_clip"])
def test_a_missing_package_is_named(backend, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedfeat\[clip\]'"):
        require(backend)


def test_a_small_real_clip_from_a_folder(tmp_path):
    real = pytest.importorskip("transformers")
    folder = write_small_clip(real, tmp_path / "clip")
    settings = TextSettings(encoder="transformers", path=str(folder))
    found = class_features(settings, ("sea", "seal", "sea"))
    assert found.features.shape == (3, 16)
    torch.testing.assert_close(found.features[0], found.features[2])
    assert not torch.allclose(found.features[0], found.features[1])
    model = real.AutoModel.from_pretrained(folder)
    tokens = real.AutoTokenizer.from_pretrained(folder)(["a photo of a sea"], return_tensors="pt")
    with torch.no_grad():
        hidden = model.text_model(**tokens).pooler_output
        torch.testing.assert_close(found.features[0], model.text_projection(hidden)[0], atol=1e-5, rtol=1e-5)
    tower = load_tower("transformers", folder)
    assert tower.images(np.zeros((2, 8, 8, 1), dtype=np.uint8)).shape == (2, 16)


def write_small_clip(real, folder):
    """Save a two-layer CLIP with its tokenizer and image processor, as a downloaded folder would look."""
    folder.mkdir()
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(c + "</w>" for c in letters)]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**small, "vocab_size": len(tokens), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    vision = {**small, "image_size": 16, "patch_size": 8}
    config = real.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    torch.manual_seed(0)
    real.CLIPModel(config).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    real.CLIPImageProcessor(**sizes).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    return folder
