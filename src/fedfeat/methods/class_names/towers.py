"""Local models: CLIP's two towers and sentence encoders, from a folder or a checkpoint on this disk."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.core.errors import ConfigError, MissingExtra, required
from fedfeat.core.files import expanded
from fedfeat.methods.class_names.settings import TextSettings

PACKAGES = {
    "open_clip": "open_clip",
    "transformers": "transformers",
    "sentence-transformers": "sentence_transformers",
    "openai_clip": "clip",
}


@dataclass(frozen=True)
class Tower:
    """Local encoders: prompts to features and, with CLIP, images (uint8 [N, H, W, C]) to features, float32."""

    text: Callable[[Sequence[str]], Tensor]
    images: Callable[[np.ndarray], Tensor] | None


def text_tower(settings: TextSettings) -> Tower:
    """Load the model that a text encoder needs."""
    path = check_tower(settings)
    return load_tower(settings.encoder, path, settings.arch)


def check_tower(settings: TextSettings) -> Path:
    """Return where the model lies; a missing place or package is refused before anything is loaded."""
    path = expanded(settings.path)
    if path is None or not path.exists():
        where = "no path is set" if path is None else f"{path} does not exist"
        raise ConfigError(
            f"text.path: the encoder {settings.encoder!r} needs a local model and {where}; give its folder or "
            "checkpoint, or choose the encoder 'ngrams'"
        )
    require(settings.encoder)
    return path


def require(backend: str) -> None:
    """Refuse a backend whose package is not installed."""
    package = PACKAGES[backend]
    try:
        found = importlib.util.find_spec(package) is not None
    except ValueError:  # a module put into sys.modules by hand has no spec
        found = True
    if not found:
        raise MissingExtra(package, "clip", f"the encoder {backend!r}")


def tower_name(backend: str, path: Path, arch: str) -> str:
    """Return the identity of a local model for the record of a run."""
    return f"{backend}-{arch}-{path.name}" if backend == "open_clip" and path.is_file() else f"{backend}-{path.name}"


def load_tower(backend: str, path: Path, arch: str = "", device: str = "cpu") -> Tower:
    """Load a local model with one of the packages."""
    require(backend)
    module = importlib.import_module(PACKAGES[backend])
    load = {
        "open_clip": _open_clip,
        "transformers": _transformers,
        "sentence-transformers": _sentences,
        "openai_clip": _openai_clip,
    }[backend]
    try:
        return load(module, path, arch, device)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(
            f"{backend}: {path} cannot be loaded ({reason}); check the files and the architecture"
        ) from error


def _open_clip(module: Any, path: Path, arch: str, device: str) -> Tower:
    if path.is_dir():
        arch, options = f"local-dir:{path}", {}
    else:
        # A checkpoint given by its path carries no tag that could say which activation it was trained with.
        options = {"pretrained": str(path)}
    model, _, preprocess = module.create_model_and_transforms(arch, **options)
    return _both_towers(model, preprocess, module.get_tokenizer(arch), device)


def _openai_clip(module: Any, path: Path, arch: str, device: str) -> Tower:
    model, preprocess = module.load(str(path), device=device)
    return _both_towers(model, preprocess, module.tokenize, device)


def _both_towers(model: Any, preprocess: Any, tokenize: Any, device: str) -> Tower:
    model = model.float().eval().to(device)

    def text(prompts: Sequence[str]) -> Tensor:
        return _projected(model.encode_text, tokenize(list(prompts)).to(device))

    def images(pixels: np.ndarray) -> Tensor:
        return _projected(model.encode_image, torch.stack([preprocess(i) for i in _pictures(pixels)]).to(device))

    return Tower(text, images)


def _transformers(module: Any, path: Path, arch: str, device: str) -> Tower:
    tokenizer = module.AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    model = module.AutoModel.from_pretrained(str(path), local_files_only=True).float().eval().to(device)

    def tokens(prompts: Sequence[str]) -> dict[str, Tensor]:
        made = tokenizer(list(prompts), padding=True, truncation=True, return_tensors="pt")
        return {name: value.to(device) for name, value in made.items()}

    if not hasattr(model, "get_text_features"):
        return Tower(lambda prompts: _mean_token(model, tokens(prompts)), None)
    width = getattr(model.config, "projection_dim", None)

    def text(prompts: Sequence[str]) -> Tensor:
        return _checked(_projected(model.get_text_features, **tokens(prompts)), width, path)

    @cache
    def processor() -> Any:
        return _image_processor(module, path)

    def images(pixels: np.ndarray) -> Tensor:
        inputs = processor()(images=_pictures(pixels), return_tensors="pt")["pixel_values"]
        return _checked(_projected(model.get_image_features, pixel_values=inputs.to(device)), width, path)

    return Tower(text, images)


def _image_processor(module: Any, path: Path) -> Any:
    """Return what prepares images for a model; without torchvision the one that does it with Pillow."""
    try:
        return module.AutoImageProcessor.from_pretrained(str(path), local_files_only=True)
    except ImportError:
        kind = json.loads((path / "preprocessor_config.json").read_text())["image_processor_type"]
        with_pillow = getattr(module, f"{kind.removesuffix('Fast').removesuffix('Pil')}Pil")
        return with_pillow.from_pretrained(str(path), local_files_only=True)


def _sentences(module: Any, path: Path, arch: str, device: str) -> Tower:
    model = module.SentenceTransformer(str(path), local_files_only=True, device=device)
    return Tower(lambda prompts: torch.as_tensor(np.asarray(model.encode(list(prompts)))).float(), None)


@torch.no_grad()
def _projected(encode: Callable[..., Any], *args: Tensor, **kwargs: Tensor) -> Tensor:
    """Run a tower and return its projected features in float32.

    transformers 4 returns the tensor; transformers 5 returns an output whose ``pooler_output`` it is.
    """
    out = encode(*args, **kwargs)
    features: Tensor = out if isinstance(out, Tensor) else out.pooler_output
    return features.float().cpu()


@torch.no_grad()
def _mean_token(model: Any, tokens: dict[str, Tensor]) -> Tensor:
    """Average the tokens of a plain language model, padding left out."""
    hidden: Tensor = model(**tokens).last_hidden_state.float()
    mask = tokens["attention_mask"][:, :, None].float()
    return ((hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).cpu()


def _checked(features: Tensor, width: int | None, path: Path) -> Tensor:
    if width is not None and features.shape[1] != width:
        raise ConfigError(
            f"transformers: {path} should give projected features of width {width}, got {features.shape[1]}; "
            "use a released version of transformers 4 or 5"
        )
    return features


def _pictures(pixels: np.ndarray) -> list[Any]:
    """Return PIL images, grey ones as RGB: the towers' own preprocessing starts from those."""
    image = required("PIL.Image", "clip", "encoding images", package="pillow")
    rgb = np.repeat(pixels, 3, axis=3) if pixels.shape[3] == 1 else pixels
    return [image.fromarray(p) for p in np.ascontiguousarray(rgb)]
