"""Image models in a folder of this machine: Hugging Face ``transformers``, and ``timm``.

Weights are read from safetensors alone. No code of the folder is run, and nothing is fetched.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedfeat.core.errors import ConfigError, required
from fedfeat.models.pretrained import LoadedModel, PixelScale

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = "*.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def load_model(kind: str, folder: Path | None, size: int | None = None) -> LoadedModel:
    """Load a model of ``hf`` or ``timm``; ``size`` is the height and width of images in place of its own."""
    folder = checked_folder(folder)
    return (_load_hf if kind == "hf" else _load_timm)(folder, size)


def checked_folder(folder: Path | None) -> Path:
    """Return a folder that holds a model in safetensors; anything else is refused in one sentence."""
    if folder is None or not folder.is_dir():
        raise ConfigError(
            f"model.path: expected the folder of a model, got {folder}; give one that holds {CONFIG} and "
            "model.safetensors (nothing is downloaded)"
        )
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"model.path: {folder} has no {CONFIG}; give the folder that a model was saved to")
    if not any(folder.glob(WEIGHTS)):
        pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
        found = f"only {', '.join(pickled)}, which may run code when read" if pickled else "no weights"
        raise ConfigError(f"model.path: {folder} holds {found}; save the model again as safetensors")
    return folder


def fingerprint_of(folder: Path) -> str:
    """Return the SHA-256 of a folder's weights and settings: equal for equal features, wherever it lies."""
    digest = hashlib.sha256()
    names = sorted(path.name for path in folder.glob(WEIGHTS))
    for name in (CONFIG, PREPROCESSOR, *names):
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                digest.update(f"{name}\n".encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _load_hf(folder: Path, size: int | None) -> LoadedModel:
    transformers = required("transformers", "hf", "model.name = 'hf'")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), **local)
        module, report = transformers.AutoModel.from_pretrained(
            str(folder), config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **local
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"model.path: transformers cannot load {folder} ({reason}); give the folder of an image model"
        ) from None
    accepted = inspect.signature(module.forward).parameters
    if "pixel_values" not in accepted:
        raise ConfigError(f"model.path: {folder} holds {type(module).__name__}, which takes no images; give another")
    missing = sorted(n for n in report["missing_keys"] if not n.startswith("pooler."))
    refuse_missing(folder, missing)
    own, pixels = _preprocessing(folder)
    usual = getattr(config, "image_size", None)
    wanted = size or own or usual
    resized = wanted is not None and usual is not None and wanted != usual
    told = resized and "interpolate_pos_encoding" in accepted  # some transformers take images of one size unless told
    options = {"interpolate_pos_encoding": True} if told else {}
    channels = int(getattr(config, "num_channels", 3))
    return LoadedModel(module, wanted, channels, pixels, fingerprint_of(folder), options)


def _preprocessing(folder: Path) -> tuple[int | None, PixelScale | None]:
    """Return the size and the normalisation that a folder states for the images of its model."""
    if not (folder / PREPROCESSOR).is_file():
        return None, None
    table = _read_json(folder / PREPROCESSOR)
    stated = table.get("crop_size") if table.get("do_center_crop", True) else None
    stated = stated or table.get("size")
    if isinstance(stated, dict):
        stated = stated.get("height") or stated.get("shortest_edge")
    normalised = table.get("do_normalize", True) and {"image_mean", "image_std"} <= table.keys()
    pixels = PixelScale(table["image_mean"], table["image_std"]) if normalised else None
    return stated if isinstance(stated, int) else None, pixels


def _load_timm(folder: Path, size: int | None) -> LoadedModel:
    timm = required("timm", "timm", "model.name = 'timm'")
    table = _read_json(folder / CONFIG)
    stated: dict[str, Any] = table.get("pretrained_cfg", {})
    channels, own, _ = stated.get("input_size", (3, None, None))
    resized = {} if size is None else {"img_size": size}
    try:
        module = timm.create_model(table["architecture"], pretrained=False, num_classes=0, in_chans=channels, **resized)
    except (KeyError, RuntimeError, TypeError) as error:
        raise ConfigError(f"model.path: timm cannot make the model of {folder} ({error}); give another") from None
    weights = {name: value for path in sorted(folder.glob(WEIGHTS)) for name, value in load_file(path).items()}
    refuse_missing(folder, module.load_state_dict(weights, strict=False).missing_keys)
    pixels = PixelScale(stated["mean"], stated["std"]) if {"mean", "std"} <= stated.keys() else None
    return LoadedModel(module, size or own, channels, pixels, fingerprint_of(folder))


def refuse_missing(folder: Path, missing: list[str]) -> None:
    """Refuse a folder whose weights are not all there: the rest would be random."""
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ConfigError(f"model.path: {folder} lacks weights of its model ({shown}); save the whole model again")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"model.path: {path} cannot be read as JSON ({error}); restore it") from None
    return table
