"""``fedfeat data``: fetch, check and list data sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedfeat.cli.show import Subject, list_
from fedfeat.core.errors import DataError
from fedfeat.data.dataset import summarise
from fedfeat.data.download import DOWNLOADS, addresses, fetch
from fedfeat.data.download import Progress as Report
from fedfeat.data.load import DATASETS, find_dataset, find_source, list_datasets, load_dataset
from fedfeat.data.settings import DataSettings, download_folder

app = typer.Typer(no_args_is_help=True)


class Way(StrEnum):
    """How images come to a size."""

    crop = "crop"
    pad = "pad"


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="a data set that 'fedfeat data list' says needs a download")],
    to: Annotated[Path | None, typer.Option(help="folder to put the files in")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="a mirror: of the official file, or a folder where there are several", envvar="FEDFEAT_DATA_URL"
        ),
    ] = None,
) -> None:
    """Download the official files of a data set; an interrupted download resumes."""
    needs = find_dataset(name).needs
    if needs == "nothing":
        typer.echo(f"{name} is built in, nothing to download")
        return
    if needs == "path":
        raise DataError(f"{name} stands for your own data and has no download; choose {', '.join(DOWNLOADS)}")
    folder, official = to.expanduser() if to else download_folder(name), DOWNLOADS[name]
    for file, address in zip(official, addresses(name, url), strict=True):
        with _progress(file.file_name) as report:
            fetch(address, folder / file.file_name, file.md5, report)
    there = str(folder if len(official) > 1 else folder / official[0].file_name)
    typer.echo(f"{name}: {there}" + (f"; use it with data.path = {json.dumps(there)}" if to else ""))


@contextmanager
def _progress(title: str) -> Iterator[Report]:
    """Yield a report function: a bar on a terminal, a line per tenth elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_lines(title: str) -> Report:
    printed = -1

    def report(done: int, total: int | None) -> None:
        nonlocal printed
        tenth = 10 * done // total if total else done >> 24
        if tenth != printed:
            printed = tenth
            typer.echo(f"{title}: {done >> 20} MiB of {total >> 20 if total else '?'} MiB", err=True)

    return report


@app.command("check")
def check_command(
    name: Annotated[str | None, typer.Argument(help="data set; without it, every named set is checked")] = None,
    path: Annotated[str | None, typer.Option(help="folder, archive or file of the data set")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="as data.image_size")] = None,
    resize: Annotated[Way, typer.Option(help="as data.resize")] = Way.crop,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Load a data set with all its classes and print counts, sizes and its fingerprint."""
    if name is None and path is not None:
        raise DataError(f"--path {path} needs the name of its data set or layout: fedfeat data check NAME --path ...")
    if name is not None:
        reports = [_check(name, path, image_size, resize)]
    else:
        reports = [_check_if_found(info.name) for info in list_datasets() if info.needs != "path"]
    if as_json:
        typer.echo(json.dumps(reports[0] if name is not None else reports, indent=2))
    else:
        for report in reports:
            _print_report(report)
    damaged = [report["name"] for report in reports if report["status"] == "damaged"]
    if damaged:
        raise DataError(f"cannot be used: {', '.join(damaged)}; the lines above say why")


def _check(name: str, path: str | None, image_size: int | None = None, resize: Way = Way.crop) -> dict[str, Any]:
    # Every class the source has, also where a run would take a subset by default.
    every = find_dataset(name).classes
    settings = DataSettings(name=name, path=path, subset_classes=every, image_size=image_size, resize=resize.value)
    return {"status": "ok", **summarise(load_dataset(settings))}


def _check_if_found(name: str) -> dict[str, Any]:
    try:
        if DATASETS[name].needs == "download" and find_source(DATASETS[name]) is None:
            return {"status": "missing", "name": name, "hint": f"run: fedfeat data get {name}"}
        return _check(name, None)
    except DataError as error:
        return {"status": "damaged", "name": name, "hint": str(error)}


def _print_report(report: dict[str, Any]) -> None:
    if report["status"] != "ok":
        typer.echo(f"{report['name']}: {report['status']}; {report['hint']}")
        return
    typer.echo(f"{report['name']}: {report['classes']} classes, images {report['image_size']}")
    for split in ("train", "test"):
        counts = report[split]
        per_class = f"{counts['per_class_min']} to {counts['per_class_max']} per class"
        typer.echo(f"  {split:<6} {counts['images']} images, {per_class}")
    typer.echo(f"  sha256 {report['sha256']}")


@app.command("list")
def list_command() -> None:
    """List the data sets that can be named."""
    list_(Subject.datasets)
