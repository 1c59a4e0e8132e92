"""``fedfeat report`` and ``fedfeat watch``: finished runs in one HTML file, running ones on a page that updates."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfeat.core.errors import FedfeatError, MissingExtra
from fedfeat.core.files import write_atomically


def report(
    dirs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="run folders, or folders of them")],
    out: Annotated[Path | None, typer.Option(help="file to write; default: report.html in DIR")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print the table as Markdown")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="print the table as CSV, with full precision")] = False,
) -> None:
    """Compare finished runs: print a table and write one HTML page that works offline."""
    from fedfeat.report.collect import find_runs, group_runs, problems
    from fedfeat.report.page import write_report
    from fedfeat.report.tables import comparison_csv, comparison_markdown, comparison_terminal

    if markdown and csv:
        raise FedfeatError("--markdown and --csv exclude each other; choose one")
    runs = find_runs(dirs)
    groups = group_runs(runs)
    console = Console(highlight=False)
    if markdown or csv:
        print(comparison_markdown(groups) if markdown else comparison_csv(groups), end="")
    else:
        console.print(comparison_terminal(groups, console.width))
    target = report_path(dirs, out)
    write_report(runs, target)
    missing = len(problems(runs))
    note = f" ({missing} thing{'s' if missing > 1 else ''} missing, named at its end)" if missing else ""
    # To the error stream, so that the table alone can be piped.
    print(f"report: {target}{note}", file=sys.stderr)


def watch(
    dirs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="run folders, or folders of them")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="port on 127.0.0.1; 0 takes a free one")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="open the page in a browser")] = False,
) -> None:
    """Show runs while they go on: a page on this machine that updates by itself; runs never wait for it."""
    from fedfeat.report.watch import PageServer

    for folder in dirs:
        if folder.exists() and not folder.is_dir():
            raise FedfeatError(f"{folder}: a file, not a folder; give a run folder, or a folder of run folders")
    try:
        server = PageServer(dirs, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FedfeatError(f"--port {port}: cannot be used ({reason}); choose another, or 0 for a free one") from None
    with server:
        print(f"watching {', '.join(map(str, dirs))}: {server.address} (Ctrl-C ends)", flush=True)
        if open_:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nstopped watching; the runs go on")


def report_path(dirs: Sequence[Path], out: Path | None) -> Path:
    """Return where the page goes: as told, or into the folder that holds everything reported."""
    if out is not None:
        return out / "report.html" if out.is_dir() else out
    if len(dirs) == 1:
        return dirs[0] / "report.html"
    return Path(os.path.commonpath([folder.resolve() for folder in dirs])) / "report.html"


def write_comparison(folder: Path, console: Console) -> None:
    """Report every run under a folder: table on the screen; Markdown, CSV, curves and HTML beside the runs."""
    from fedfeat.report import curves_png
    from fedfeat.report.collect import find_runs, group_runs
    from fedfeat.report.page import write_report
    from fedfeat.report.tables import comparison_csv, comparison_markdown, comparison_terminal

    runs = find_runs([folder])
    groups = group_runs(runs)
    Console(file=console.file, highlight=False).print(comparison_terminal(groups, console.width))
    write_atomically(folder / "table.md", comparison_markdown(groups).encode())
    write_atomically(folder / "table.csv", comparison_csv(groups).encode())
    written = ["table.md", "table.csv"]
    try:
        curves_png(runs, folder / "curves.png")
        written.append("curves.png")
    except MissingExtra as missing:
        console.print(f"no picture: {missing}", markup=False)
    write_report(runs, folder / "report.html")
    console.print(f"{folder}: {', '.join([*written, 'report.html'])}", markup=False)


def write_run_report(folder: Path) -> None:
    """Write the page of one run into its folder."""
    from fedfeat.report.collect import find_runs
    from fedfeat.report.page import write_report

    write_report(find_runs([folder]), folder / "report.html")
