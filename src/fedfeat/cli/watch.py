"""``fedfeat watch``: the report of runs while they go on, in a browser on this machine."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedfeat.core.errors import FedfeatError


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
