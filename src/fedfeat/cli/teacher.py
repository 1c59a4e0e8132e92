"""Commands about the teacher of CLIP2FL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from fedfeat.core.errors import ConfigError, nearest
from fedfeat.data.load import find_dataset, load_dataset
from fedfeat.data.settings import DataSettings
from fedfeat.methods.clip2fl.teacher import Live, LiveTeacher, TeacherSettings, encode_all, make_teacher
from fedfeat.methods.clip2fl.teacher_cache import write_cache

app = typer.Typer(no_args_is_help=True)


@app.command("build")
def build_command(
    name: Annotated[str, typer.Argument(help="data set, or npz, parquet, folder with --data-path")],
    model: Annotated[Path, typer.Option(help="local checkpoint or folder of a CLIP model")],
    out: Annotated[Path, typer.Option(help="file to write, .safetensors")],
    backend: Annotated[str, typer.Option(help="open_clip, transformers or openai_clip")] = "open_clip",
    arch: Annotated[str, typer.Option(help="architecture of an open_clip checkpoint")] = "ViT-B-32-quickgelu",
    prompt: Annotated[str, typer.Option(help="what the text tower reads")] = "a photo of a {class}",
    data_path: Annotated[str | None, typer.Option(help="folder, archive or file of the data set")] = None,
    device: Annotated[str, typer.Option(help="where to encode: cpu, cuda")] = "cpu",
) -> None:
    """Encode every training image and class name of a data set once; nothing is downloaded."""
    if backend not in get_args(Live):
        raise ConfigError(f"--backend: {backend!r} cannot encode images; {nearest(backend, get_args(Live))}")
    if out.suffix != ".safetensors":
        raise ConfigError(f"--out: expected a name that ends in .safetensors, got {out}")
    settings = TeacherSettings(backend=cast(Live, backend), path=str(model), arch=arch, prompt=prompt, device=device)
    teacher = make_teacher(settings)
    assert isinstance(teacher, LiveTeacher)
    # All classes, also where a run would take a subset: the file then serves every subset.
    data = DataSettings(name=name, path=data_path, subset_classes=find_dataset(name).classes)
    dataset = load_dataset(data)
    cache = encode_all(teacher, dataset, _report)
    write_cache(out, cache)
    count, width = cache.image_features.shape
    typer.echo(f"{out}: {count} images and {len(cache.class_names)} classes in {width} dimensions, {cache.model_id}")
    typer.echo(f'use it with: clip2fl.teacher.backend=cache clip2fl.teacher.path="{out}"')


def _report(done: int, total: int) -> None:
    if done == total or done * 10 // total != (done - 256) * 10 // total:
        typer.echo(f"{done} of {total} images", err=True)
