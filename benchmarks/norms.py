"""What the norms of ResNet-18 cost on an NVIDIA GPU, forward and backward, with several ways to cut their sums.

    PYTHONPATH=src python benchmarks/norms.py --tiles 4096,8192 --parts 256,512 --warps 4,8 --stages 1,3

Five streams replay the twenty norms of a training step each, as five clients do, without the convolutions between them.
Times are in microseconds for each image; the first row is what the engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Annotated

import torch
import typer
from torch import Tensor

from fedfeat.engines.cuda.kernels import norm
from fedfeat.engines.cuda.kernels.launch import compiling_ahead
from fedfeat.models.backbones import BatchNorm
from fedfeat.report.tables import markdown_table

BATCH, STREAMS, REPLAYS = 128, 5, 20
Numbers = Annotated[str, typer.Option(help="comma-separated")]


def layers() -> Iterator[tuple[int, int, bool, int, bool]]:
    """Return channels, pixels, whether a shortcut ends there, the step of the next one, and ReLU of each norm."""
    yield 64, 32, False, 1, True
    for stage in range(4):
        channels, pixels = 64 << stage, 32 >> stage
        if stage:
            yield channels, pixels, False, 0, False  # of the shortcut
        for block in range(2):
            yield channels, pixels, False, 0, True
            yield channels, pixels, True, 2 if block and stage < 3 else 1, True


def step_of_norms(device: torch.device) -> Callable[[], None]:
    """Return the norms of one training step, forward and backward, on tensors of their own."""
    cases = []
    for channels, pixels, shortcut, step, relu in layers():
        shape = (BATCH, channels, pixels, pixels)
        x, skip, dy = (_drawn(shape, device) for _ in range(3))
        size = -(-pixels // step) if step else 0
        thin = _drawn((BATCH, channels, size, size), device) if step else None
        cases.append((BatchNorm(channels).to(device).train(), x, skip if shortcut else None, dy, thin, step, relu))

    def run() -> None:
        for layer, x, skip, dy, thin, step, relu in cases:
            out = norm.norm_relu(layer, x, skip, step=max(step, 1), relu=relu)
            ends = [out.whole] if thin is None else [out.whole, out.thin]
            gradients = [dy] if thin is None else [dy, thin]
            inputs = [x, layer.weight, layer.bias, *([] if skip is None else [skip])]
            torch.autograd.grad(ends, inputs, gradients)

    return run


def _drawn(shape: tuple[int, ...], device: torch.device) -> Tensor:
    drawn = torch.randn(shape, device=device, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    return drawn.requires_grad_()


def microseconds(device: torch.device) -> float:
    """Return the time for an image when all streams replay their steps."""
    streams = [torch.cuda.Stream(device) for _ in range(STREAMS)]
    steps = [step_of_norms(device) for _ in streams]
    with compiling_ahead(device):
        steps[0]()
    graphs = []
    for stream, step in zip(streams, steps, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        graphs.append(graph)
    taken = []
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(REPLAYS):
            for stream, graph in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken) / (REPLAYS * STREAMS * BATCH) * 1e6


def main(
    tiles: Numbers = "4096", parts: Numbers = "256,512", warps: Numbers = "4,8", stages: Numbers = "1,2,3"
) -> None:
    """Print what each way takes."""
    if not torch.cuda.is_available():
        raise SystemExit("norms: there is no NVIDIA GPU here")
    usual = (norm.TILE, norm.PARTS, norm.WARPS, norm.STAGES)
    asked = product(*([int(word) for word in text.split(",")] for text in (tiles, parts, warps, stages)))
    rows = []
    for way in dict.fromkeys([usual, *asked]):
        norm.TILE, norm.PARTS, norm.WARPS, norm.STAGES = way
        rows.append([*map(str, way), f"{microseconds(torch.device('cuda', 0)):.2f}"])
        print(*rows[-1], flush=True)
    print(markdown_table(["tile", "parts", "warps", "stages", "microseconds per image"], rows, 0))


if __name__ == "__main__":
    typer.run(main)
