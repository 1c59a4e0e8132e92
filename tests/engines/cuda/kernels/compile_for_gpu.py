"""Compile the kernels of a training step for a GPU that is not here; prints how many there are of each name.

The interpreter runs what a compiler would refuse. So the step is walked through with every launch noted, as on a GPU
before its kernels are compiled, and what was noted goes through Triton's compiler and NVIDIA's assembler.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fedfeat.data.augment import DeviceImages, plan_epoch
from fedfeat.data.dataset import Augmentation
from fedfeat.engines.cuda.kernels import launch
from fedfeat.engines.cuda.kernels.alignment import gsa_loss
from fedfeat.engines.cuda.kernels.augment import Augment
from fedfeat.engines.cuda.kernels.descend import Descend
from fedfeat.engines.cuda.kernels.norm import norm_relu
from fedfeat.engines.cuda.kernels.patches import patches
from fedfeat.models import FlatModel, LinearHead, Network
from fedfeat.models.backbones import BatchNorm, ResNet

HOPPER = GPUTarget("cuda", 90, 32)
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: "u8", torch.bool: "i1", torch.int64: "i64"}
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}  # of the compiler, and what it does by default
Source = tuple[Any, tuple[tuple[str, str], ...], tuple[tuple[str, Any], ...], tuple[tuple[str, Any], ...]]


class Notes:
    """What was launched, each kind once."""

    def __init__(self) -> None:
        self.sources: dict[Source, None] = {}

    def note(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Take one launch."""
        chosen = tuple((name, options.pop(name, usual)) for name, usual in OPTIONS.items())
        given = dict(zip(kernel.arg_names, args, strict=False)) | options
        types = {name: kind_of(value) for name, value in given.items()}
        fixed = {name: given[name] for name in given if name in options or given[name] is None}
        signature = tuple((name, "constexpr" if name in fixed else types[name]) for name in kernel.arg_names)
        self.sources[kernel, signature, tuple(fixed.items()), chosen] = None


def kind_of(value: Any) -> str:
    """Return the type of an argument in Triton's words."""
    if isinstance(value, Tensor):
        return f"*{DTYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def walk() -> None:
    """Launch what a client's step launches, in bf16: augmentations, network, alignment, both backward, SGD."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8), np.zeros(8, dtype=np.int64)
    plain = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    crops = Augmentation(4, True, 0.2)
    images = DeviceImages(pixels, labels, mean=plain[0], std=plain[1], augmentation=crops, device=torch.device("cpu"))
    draws = plan_epoch(rng, 8, crops)
    seen = Augment(images, torch.bfloat16)(draws.order, draws.crops, draws.flips, draws.brightness)
    Augment(images, torch.bfloat16)(draws.order, draws.crops, draws.flips, draws.brightness, torch.zeros(8, 2))
    head = LinearHead(512, seed=0)
    head.grow(4, 0)
    network = Network(ResNet(3), head)
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.kernel = norm_relu
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stem = network.backbone.stem[0]
        patches(seen, stem)
        features = network.backbone(seen)
        with torch.no_grad():
            network.eval().backbone(seen)
    model = FlatModel(network)
    loss = gsa_loss(features, torch.zeros(8, dtype=torch.int64), 4) + head(features.float()).sum()
    gradients = list(torch.autograd.grad(loss, model.parameters))
    step, velocity = Descend(model.views(model.weights)), torch.zeros_like(model.weights)
    rate, half = torch.tensor(0.1), model.weights.to(torch.bfloat16)
    step(gradients, model.weights, velocity, half, rate, momentum=0.9, decay=0.1)


def compiled(source: Source) -> str:
    """Compile one kind for Hopper and return the kernel's name; the assembler's output has to be there."""
    kernel, signature, fixed, options = source
    names = [name for name, _ in signature]
    constants = {(names.index(name),): value for name, value in fixed}
    aligned = {(place,): [["tt.divisibility", 16]] for place, (_, kind) in enumerate(signature) if kind[0] == "*"}
    made = triton.compile(
        ASTSource(fn=kernel, signature=dict(signature), constexprs=constants, attrs=aligned),
        target=HOPPER,
        options=dict(options),
    )
    assert made.asm["cubin"], kernel.__name__
    return str(kernel.__name__)


def main() -> None:
    """Note, compile, count."""
    assert os.environ.get("TRITON_INTERPRET", "0") != "1", "the interpreter compiles nothing"
    notes = Notes()
    launch._ahead = notes  # type: ignore[assignment]
    walk()
    launch._ahead = None
    for name, count in sorted(Counter(map(compiled, notes.sources)).items()):
        print(name, count)


if __name__ == "__main__":
    sys.exit(main())
