"""Small image models of Hugging Face with random weights, saved as folders: what tests use in place of trained ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.5]
# Four thin layers that take images of 8 pixels in patches of 4, as the toy problem has them.
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}


def save_model(folder: Path, kind: str = "ViT", *, preprocessor: dict[str, Any] | None = None, **shape: Any) -> Path:
    """Write a model with random weights, larger than usual: features of a fresh transformer hardly differ."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    config = getattr(transformers, f"{kind}Config")(**(shape or VIT))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = getattr(transformers, f"{kind}Model")(config)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.05 if "patch" in name else 0.3)
    module.save_pretrained(folder)
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder
