"""``fedfeat paper``: the paper's tables and figures, run, shown beside ours, recorded.

The reproduction is imported when a command runs, so that the rest of the command line does without it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedfeat.cli.run import DryRun, PerGPU, RayAddress, RecipeName, Workers, changes, make_pool
from fedfeat.config.presets import METHOD
from fedfeat.core.errors import FedfeatError

app = typer.Typer(no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True, markup=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="a table, a figure or 'choices', see 'fedfeat paper list'")]
Only = Annotated[
    str,
    typer.Option(
        help=f"data sets, skews, clients, methods, such as cifar10-5,beta0.5,k5,{METHOD}; or names of choices, "
        "such as momentum,logits"
    ),
]
Also = Annotated[str, typer.Option(help="methods of ours to add to the chosen cells; see 'fedfeat list methods'")]
Quick = Annotated[bool, typer.Option("--quick", help="built-in digits in small: minutes on a processor")]
Out = Annotated[Path | None, typer.Option(help="folder of runs; default runs/paper, or runs/paper-quick")]
Results = Annotated[Path, typer.Option(help="folder of records")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting")]


class Engine(StrEnum):
    """What runs the clients of a table's experiments."""

    inprocess = "inprocess"
    cuda = "cuda"


class Format(StrEnum):
    """How a table is printed."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


@app.command("list")
def list_(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="only these; default all")] = None,
    only: Only = "",
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds a number should have, from 2023 on")] = 3,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="calibrated, where that is possible")] = False,
    recipe: RecipeName = None,
    set: Set = None,
    queue: Annotated[bool, typer.Option("--queue", help="print what is left as lines for 'fedfeat queue'")] = False,
    results: Results = Path("results"),
    out: Out = None,
) -> None:
    """Name the paper's tables, figures and open choices: our numbers, the runs left, and their GPU minutes."""
    from fedfeat.cli.paper_list import Asked, print_list, print_queue
    from fedfeat.cli.paper_output import Place
    from fedfeat_reproduction.experiments import first_seeds

    place = Place(False, out, results)
    asked = Asked(names or (), first_seeds(seeds), only, calibrate, changes(recipe, set))
    if queue:
        print_queue(place, asked)
    else:
        print_list(place, asked, console)


@app.command()
def run(
    name: Name,
    only: Only = "",
    also: Also = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="how many seeds; default 3, with --quick 1")] = None,
    quick: Quick = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="calibrate what can be: one training, figures with and without it")
    ] = False,
    engine: Annotated[Engine | None, typer.Option(help="inprocess, or cuda for captured steps in bf16")] = None,
    data: Annotated[Path | None, typer.Option(help="folder of the data set; default as for 'fedfeat run'")] = None,
    recipe: RecipeName = None,
    set: Set = None,
    record_to: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="of quick choices: also write all effects there are")
    ] = None,
    workers: Workers = None,
    per_gpu: PerGPU = None,
    ray: RayAddress = None,
    dry_run: DryRun = False,
    out: Out = None,
    results: Results = Path("results"),
) -> None:
    """Run what is missing of a table, a figure or the choices, and show it; finished runs are never run again."""
    from fedfeat.cli import paper_output as paper
    from fedfeat_reproduction.experiments import engine_overrides, first_seeds

    kind, changed = paper.checked_kind(name, set or ()), changes(recipe, set)
    if kind != "table" and (also or calibrate):
        raise FedfeatError(f"{name}: has its own methods; --also and --calibrate are for tables")
    if record_to and not (kind == "choices" and quick):
        raise FedfeatError("--record is for 'choices --quick'; 'fedfeat paper record' is for runs of other settings")
    if quick:
        console.print(paper.quick_note(kind), style="yellow")
    place = paper.Place(quick, out, results)
    runs = paper.Runs(
        first_seeds(seeds or (1 if quick else 3)),
        [*engine_overrides(engine and engine.value, data), *changed],
        make_pool(workers, per_gpu, ray),
        dry_run,
    )
    if kind == "choices":
        paper.run_choices(only, runs, place, record_to, console)
    elif kind == "figure":
        paper.run_figure(name, only, runs, place, console)
    else:
        paper.run_table(name, paper.entries_of(name, only, also), calibrate, changed, runs, place, console)


@app.command()
def show(
    name: Name,
    only: Only = "",
    also: Also = "",
    format: Annotated[Format, typer.Option(help="how to print it")] = Format.terminal,
    quick: Quick = False,
    recipe: RecipeName = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="of tables and choices: as they were run"),
    ] = None,
    out: Out = None,
    results: Results = Path("results"),
) -> None:
    """Show published values, our mean and spread, the number of seeds and the difference; nothing is run."""
    from fedfeat.cli import paper_output as paper

    kind, place = paper.checked_kind(name, set or ()), paper.Place(quick, out, results)
    if quick and format is Format.terminal:
        console.print(paper.quick_note(kind), style="yellow")
    if kind == "choices":
        if also:
            raise FedfeatError(f"{name}: has its own methods; --also is for tables")
        paper.show_choices(only, changes(recipe, set), place, format, console)
    elif kind == "figure":
        if set or recipe:
            raise FedfeatError(f"{name}: shows what was drawn; --set is for tables and choices, and for 'paper run'")
        if only or also:
            raise FedfeatError(f"{name}: shows what was drawn; --only is for 'paper run', --also for tables")
        paper.show_figure(name, place, format, console)
    else:
        paper.show_table(name, paper.entries_of(name, only, also), changes(recipe, set), place, format, console)


@app.command()
def figures(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="only these; default all")] = None,
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="folder of the drawings and of the runs on the digits")] = Path(
        "runs/paper-figures"
    ),
    results: Results = Path("results"),
) -> None:
    """Draw all figures: from the numbers of real runs where there are some, else in small on the digits, and marked."""
    from fedfeat.cli.paper_output import Place, draw_figures

    draw_figures(names or (), Place(False, out, results), make_pool(workers, None, None), console)


@app.command()
def record(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="finished run folders")],
    images: Annotated[str, typer.Option(help="where the images came from, and whether they were lossless")],
    results: Results = Path("results"),
) -> None:
    """Write a small record of each run, from which the reproduction page is made."""
    from fedfeat_reproduction.records import record_of_run, write_record

    for path in runs:
        console.print(str(write_record(record_of_run(path, images), results)))


@app.command()
def page(
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option(help="file to write")] = Path("docs/reproduction.md"),
) -> None:
    """Write the reproduction page from the records: every published number, ours, and how to read the gap."""
    from fedfeat.cli.paper_output import say_left_out
    from fedfeat_reproduction.page import write_page

    say_left_out(write_page(results, out))
    console.print(str(out))
