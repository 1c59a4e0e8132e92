"""``fedfeat paper``: the paper's tables and figures, run, shown beside ours, recorded."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from fedfeat.cli.paper_choices import count_effects, record_effects, run_choices, show_choices
from fedfeat.cli.paper_tables import Format, print_table, say_left_out
from fedfeat.cli.progress import exit_if_failed, finish_all
from fedfeat.cli.run import PerGPU, RayAddress, Workers, make_pool
from fedfeat.config.presets import experiment
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat.runs.sweep import RunPool, plan
from fedfeat_reproduction import cells, choices_runs
from fedfeat_reproduction.changed import refuse_fixed
from fedfeat_reproduction.choices_runs import CHOICES, TITLE, Protocol
from fedfeat_reproduction.only import also_methods, choose
from fedfeat_reproduction.ours import Line, Shelf, with_other_forms
from fedfeat_reproduction.page import write_page
from fedfeat_reproduction.published import Entry
from fedfeat_reproduction.records import Record, read_records, record_of_run, records_of_runs, write_record
from fedfeat_reproduction.runs import Plan, engine_overrides, many_seeds, small_experiment
from fedfeat_reproduction.tables import MAIN, TABLES, find_table

app = typer.Typer(no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True, markup=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="a table, a figure or 'choices', see 'fedfeat paper list'")]
Only = Annotated[
    str,
    typer.Option(
        help="data sets, skews, clients, methods, such as cifar10-5,beta0.5,k5,fedcbdr+feat; or names of choices, "
        "such as momentum,logits"
    ),
]
Also = Annotated[str, typer.Option(help="methods of ours to add to the chosen cells, such as finetune")]
Quick = Annotated[bool, typer.Option("--quick", help="built-in digits in small: minutes on a processor")]
Out = Annotated[Path | None, typer.Option(help="folder of runs; default runs/paper, or runs/paper-quick")]
Results = Annotated[Path, typer.Option(help="folder of records")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting")]


class Engine(StrEnum):
    """What runs the clients of a table's experiments."""

    inprocess = "inprocess"
    cuda = "cuda"


@app.command("list")
def list_(results: Results = Path("results"), out: Out = None) -> None:
    """Name every table and figure of the paper, and the choices it leaves open; count our numbers."""
    from fedfeat_reproduction.figures import FIGURES

    shelf = _shelf(False, out, results)
    table = Table("name", "numbers", "ours", "what", box=None, pad_edge=False)
    for paper_table in TABLES.values():
        ours = sum(shelf.line(entry).ours is not None for entry in paper_table.entries)
        table.add_row(paper_table.name, str(len(paper_table.entries)), str(ours), paper_table.title)
    for figure in FIGURES.values():
        made = (_folder(out, False) / "figures" / f"{figure.name}.pdf").is_file()
        table.add_row(figure.name, "", "made" if made else "", figure.title)
    answers, measured = count_effects(_records(False, out, results))
    table.add_row(CHOICES, str(answers), str(measured), TITLE)
    console.print(table)


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
    set: Set = None,
    record_to: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="of quick choices: also write all effects there are")
    ] = None,
    workers: Workers = None,
    per_gpu: PerGPU = None,
    ray: RayAddress = None,
    out: Out = None,
    results: Results = Path("results"),
) -> None:
    """Run what is missing of a table, a figure or the choices, and show it; finished runs are never run again."""
    folder = _folder(out, quick)
    chosen = many_seeds(seeds or (1 if quick else 3))
    refuse_fixed(name, set or (), has_cells=_kind(name) == "table")
    overrides = [*engine_overrides(engine and engine.value, data), *(set or ())]
    if quick:
        console.print(_quick_note(name), style="yellow")
    pool = make_pool(workers, per_gpu, ray)
    if _kind(name) != "table" and (also or calibrate):
        raise FedfeatError(f"{name}: has its own methods; --also and --calibrate are for tables")
    if record_to and not (_kind(name) == CHOICES and quick):
        raise FedfeatError("--record is for 'choices --quick'; 'fedfeat paper record' is for runs of other settings")
    if _kind(name) == CHOICES:
        protocol = Protocol(quick, overrides)
        outcomes = run_choices(only, protocol, chosen, folder, pool, console)
        records = _records(quick, folder, results)
        show_choices(only, protocol, records, Format.terminal, console)
        if record_to:
            record_effects(record_to, protocol, records, console)
        exit_if_failed(outcomes, console)
        return
    if _kind(name) == "figure":
        _run_figure(name, only, folder, quick, chosen, overrides, pool)
        return
    entries = _entries(name, only, also)
    if calibrate and entries[0].measure != "accuracy":
        raise FedfeatError(f"{name}: shows what is sent in training, which calibration leaves alone; omit --calibrate")
    configs, refused = Plan(chosen, quick, calibrate, overrides).configs(entries)
    for reason in refused:
        console.print(f"left out: {reason}", style="red")
    outcomes = finish_all(plan(configs, folder), console, pool=pool)
    shelf = _shelf(quick, folder, results, set or ())
    print_table(find_table(name), _lines(name, shelf, entries), Format.terminal, console)
    exit_if_failed(outcomes, console)


@app.command()
def show(
    name: Name,
    only: Only = "",
    also: Also = "",
    format: Annotated[Format, typer.Option(help="how to print it")] = Format.terminal,
    quick: Quick = False,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="of tables and choices: as they were run"),
    ] = None,
    out: Out = None,
    results: Results = Path("results"),
) -> None:
    """Show published values, our mean and spread, the number of seeds and the difference; nothing is run."""
    if quick and format is Format.terminal:
        console.print(_quick_note(name), style="yellow")
    refuse_fixed(name, set or (), has_cells=_kind(name) == "table")
    if _kind(name) == CHOICES:
        if also:
            raise FedfeatError(f"{name}: has its own methods; --also is for tables")
        show_choices(only, Protocol(quick, set or ()), _records(quick, out, results), format, console)
        return
    if _kind(name) == "figure":
        if set:
            raise FedfeatError(f"{name}: shows what was drawn; --set is for tables and choices, and for 'paper run'")
        _show_figure(name, format, quick, out, only, also)
        return
    shelf = _shelf(quick, out, results, set or ())
    print_table(find_table(name), _lines(name, shelf, _entries(name, only, also)), format, console)


@app.command()
def record(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="finished run folders")],
    images: Annotated[str, typer.Option(help="where the images came from, and whether they were lossless")],
    results: Results = Path("results"),
) -> None:
    """Write a small record of each run, from which the reproduction page is made."""
    for path in runs:
        console.print(str(write_record(record_of_run(path, images), results)))


@app.command()
def page(
    results: Results = Path("results"),
    out: Annotated[Path, typer.Option(help="file to write")] = Path("docs/reproduction.md"),
) -> None:
    """Write the reproduction page from the records: every published number, ours, and how to read the gap."""
    say_left_out(write_page(results, out))
    console.print(str(out))


def _folder(out: Path | None, quick: bool) -> Path:
    return out or Path("runs/paper-quick" if quick else "runs/paper")


def _records(quick: bool, out: Path | None, results: Path) -> list[Record]:
    runs, damaged = records_of_runs([_folder(out, quick)])
    # Records are of real settings; a quick run has its numbers in its folder alone.
    say_left_out(damaged)
    return runs if quick else [*read_records(results), *runs]


def _shelf(quick: bool, out: Path | None, results: Path, overrides: Sequence[str] = ()) -> Shelf:
    shelf = Shelf(_records(quick, out, results), small_experiment if quick else experiment, overrides)
    say_left_out(shelf.strange)
    return shelf


def _lines(name: str, shelf: Shelf, entries: Sequence[Entry]) -> list[Line]:
    """Return entries with our figures; in the main table also with other forms of the correction."""
    lines = [shelf.line(entry) for entry in entries]
    return with_other_forms(lines, shelf) if name == MAIN and not shelf.overrides else lines


def _entries(name: str, only: str, also: str) -> list[Entry]:
    chosen = choose(find_table(name).entries, only)
    if not chosen:
        raise FedfeatError(f"--only {only}: no entry of {name} fits all of it; name fewer things")
    return [*chosen, *also_methods(chosen, also)]


def _kind(name: str) -> Literal["table", "figure", "choices"]:
    from fedfeat_reproduction.figures import FIGURES

    if name == CHOICES:
        return "choices"
    if name not in FIGURES and name not in TABLES:
        known = [*TABLES, *FIGURES, CHOICES]
        raise FedfeatError(f"{name}: no such table or figure; {nearest(name, known)} (see 'fedfeat paper list')")
    return "figure" if name in FIGURES else "table"


def _quick_note(name: str) -> str:
    return choices_runs.QUICK_NOTE if name == CHOICES else cells.QUICK_NOTE


def _run_figure(
    name: str, only: str, folder: Path, quick: bool, seeds: Sequence[int], overrides: Sequence[str], pool: RunPool
) -> None:
    from fedfeat_reproduction.figures import FIGURES, Asked, experiments_of, make_figure

    asked = Asked(tuple(overrides), only)
    configs = experiments_of(FIGURES[name], quick, seeds, asked)
    outcomes = finish_all(plan(configs, folder), console, pool=pool)
    make_figure(FIGURES[name], outcomes, folder / "figures", asked)
    _show_figure(name, Format.terminal, quick, folder)
    exit_if_failed(outcomes, console)


def _show_figure(name: str, format: Format, quick: bool, out: Path | None, only: str = "", also: str = "") -> None:
    from fedfeat.cli.paper_figures import print_figure, run_options

    if only or also:
        raise FedfeatError(f"{name}: shows what was drawn; --only is for 'paper run', --also for tables")
    print_figure(name, _folder(out, quick) / "figures", format.value, console, run_options(quick, out))
