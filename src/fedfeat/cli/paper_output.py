"""What the commands of ``fedfeat paper`` run and print; imported when one of them is called."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fedfeat.cli.dry_run import run_all
from fedfeat.cli.paper import Format
from fedfeat.cli.progress import exit_if_failed, finish_all
from fedfeat.core.errors import FedfeatError, MissingExtra, nearest
from fedfeat.core.files import write_atomically
from fedfeat.report.tables import markdown_table, terminal_table
from fedfeat.runs.identity import identity
from fedfeat.runs.sweep import RunPool, plan
from fedfeat_reproduction import choices, effects, experiments, missing, render
from fedfeat_reproduction.choices import CHOICES, ChoiceRuns
from fedfeat_reproduction.figures import (
    FIGURES,
    FigureOptions,
    draw_again,
    experiments_of,
    make_figure,
    read_figure,
    write_numbers,
)
from fedfeat_reproduction.figures.overview import draw_overview
from fedfeat_reproduction.figures.recorded import recorded_runs
from fedfeat_reproduction.records import Record, read_records, records_of_runs
from fedfeat_reproduction.results import RecordIndex, TableRow, with_other_forms
from fedfeat_reproduction.tables import MAIN, TABLES, PaperEntry, further_entries, select

WIDE = 92  # a terminal with room for names of methods and choices
Kind = Literal["table", "figure", "choices"]


@dataclass(frozen=True)
class Place:
    """Where runs and records lie."""

    quick: bool
    out: Path | None
    results: Path

    @property
    def folder(self) -> Path:
        """The folder of runs."""
        return self.out or Path("runs/paper-quick" if self.quick else "runs/paper")

    def records(self) -> list[Record]:
        """Return all records; they are of real settings, a quick run has its numbers in its folder alone."""
        runs, damaged = records_of_runs([self.folder])
        say_left_out(damaged)
        kept = [] if self.quick else read_records(self.results)
        if not (self.quick or kept or runs):
            print(f"{self.results}: no record is there, so only published values are shown", file=sys.stderr)
        return [*kept, *runs]

    def index(self, overrides: Sequence[str] = (), *, earlier: bool = False) -> RecordIndex:
        """Return the records by setting; those with the earlier settings count where that is wanted."""
        index = RecordIndex(self.records(), quick=self.quick, overrides=overrides, earlier=earlier)
        say_left_out(index.unreadable)
        return index


@dataclass(frozen=True)
class Runs:
    """What is run: with which seeds and settings, and where."""

    seeds: Sequence[int]
    overrides: Sequence[str]
    pool: RunPool
    dry: bool = False  # say what would run, and no more


def checked_kind(name: str, overrides: Sequence[str]) -> Kind:
    """Return what a name stands for; an unknown name and settings that are fixed are refused."""
    if name == missing.OURS:
        raise FedfeatError(f"{name}: no table of the paper; see 'fedfeat paper list {name}', with --queue its runs")
    if name not in FIGURES and name not in TABLES and name != CHOICES:
        known = [*TABLES, *FIGURES, CHOICES]
        raise FedfeatError(f"{name}: no such table or figure; {nearest(name, known)} (see 'fedfeat paper list')")
    experiments.refuse_fixed(name, overrides, has_cells=name in TABLES)
    return "table" if name in TABLES else "figure" if name in FIGURES else "choices"


def quick_note(kind: Kind) -> str:
    """Say what quick numbers are worth."""
    return choices.QUICK_NOTE if kind == "choices" else experiments.QUICK_NOTE


def say_left_out(reasons: Sequence[str]) -> None:
    """Say beside the output what is not in it, each reason once."""
    for reason, times in Counter(reasons).items():
        print(f"left out: {reason}{f' ({times} runs)' if times > 1 else ''}", file=sys.stderr)


def entries_of(name: str, only: str, also: str) -> list[PaperEntry]:
    """Return the entries of a table that are asked for."""
    chosen = select(TABLES[name].entries, only)
    if not chosen:
        raise FedfeatError(f"--only {only}: no entry of {name} fits all of it; name fewer things")
    return [*chosen, *further_entries(chosen, also)]


def run_table(
    name: str,
    entries: Sequence[PaperEntry],
    calibrate: bool,
    changed: Sequence[str],
    runs: Runs,
    place: Place,
    console: Console,
) -> None:
    """Run what entries of a table need, and show them."""
    if calibrate and entries[0].measure != "accuracy":
        raise FedfeatError(f"{name}: shows what is sent in training, which calibration leaves alone; omit --calibrate")
    configs, refused = experiments.TableRuns(runs.seeds, place.quick, calibrate, runs.overrides).configs(entries)
    for reason in refused:
        console.print(f"left out: {reason}", style="red")
    planned = plan(configs, place.folder)
    outcomes = run_all(planned, console, runs.pool, dry=runs.dry)
    show_table(name, entries, changed, place, Format.terminal, console)
    exit_if_failed(outcomes, console)


def show_table(
    name: str, entries: Sequence[PaperEntry], changed: Sequence[str], place: Place, format: Format, console: Console
) -> None:
    """Print published values and ours; on a terminal with a heading per cell and the notes."""
    table, index = TABLES[name], place.index(changed, earlier=True)
    rows = [index.row(entry) for entry in entries]
    if name == MAIN and not index.overrides:
        rows = with_other_forms(rows, index)
    if format is not Format.terminal:
        print(_text_of_rows(rows, format, f"{table.title} ({table.unit})"), end="")
        return
    console.print(table.title, style="bold")
    for cell in dict.fromkeys(row.entry.cell for row in rows):
        console.print(f"\n{cell.title}  ({cell.name})")
        console.print(_rows_table([row for row in rows if row.entry.cell == cell], console.width >= WIDE))
    console.print()
    for note in (table.unit, *render.notes_of(rows), table.note):
        console.print(note, style="dim")


def _text_of_rows(rows: Sequence[TableRow], format: Format, caption: str) -> str:
    if format is Format.latex:
        return render.rows_latex(rows, caption)
    return render.rows_markdown(rows) if format is Format.markdown else render.rows_csv(rows)


def _rows_table(rows: Sequence[TableRow], wide: bool) -> Any:
    """Return the rows of one cell; a narrow terminal does without our names of methods."""
    tasks = any(row.entry.task for row in rows)
    headings = ["task"] * tasks + ["paper's name"] + ["method"] * wide
    cells = []
    for row in rows:
        _, label, method, *numbers = render.row_cells(row)
        cells.append([*[str(row.entry.task)] * tasks, label, *[method] * wide, *numbers])
    return terminal_table([*headings, *render.COLUMNS[render.WORDS :]], cells, len(headings))


def run_choices(only: str, runs: Runs, place: Place, record_to: Path | None, console: Console) -> None:
    """Run what is missing of the usual experiment and its variations, and show the effects."""
    shared = ChoiceRuns(place.quick, runs.overrides)
    wanted = [a for a in choices.choose_alternatives(only) if shared.objection(a) is None]
    planned = plan(shared.configs(wanted, runs.seeds), place.folder)
    outcomes = run_all(planned, console, runs.pool, dry=runs.dry)
    show_choices(only, runs.overrides, place, Format.terminal, console)
    if record_to:
        write_atomically(record_to, effects.measured(shared, place.records()).to_json().encode())
        console.print(str(record_to))
    exit_if_failed(outcomes, console)


def show_choices(only: str, overrides: Sequence[str], place: Place, format: Format, console: Console) -> None:
    """Print the effects that runs and records show; say what was left out, and why."""
    shared, among = ChoiceRuns(place.quick, overrides), effects.indices(place.records())
    left_out = [reason for index in among for reason in index.unreadable]
    found = []
    for alternative in choices.choose_alternatives(only):
        objection = shared.objection(alternative)
        if objection is None:
            pairs = effects.find_pairs(alternative, shared, among)
            found.append(effects.effect_of(alternative, shared, pairs))
        else:
            left_out.append(f"{render.settings_text(alternative.changes)}: {objection}")
    if format is Format.terminal:
        _print_effects(found, shared.where, console)
        if not overrides and not place.quick:
            _say_pairs_elsewhere([kept for index in among for kept in index.records], console)
    elif format is Format.latex:
        print(render.effects_latex(found, f"{choices.TITLE} ({shared.where})"), end="")
    elif format is Format.markdown:
        print(f"{render.effects_markdown(found)}\n{shared.where}")
    else:
        print(render.effects_csv(found, shared.where), end="")
    say_left_out(left_out)


def _print_effects(found: Sequence[effects.Effect], where: str, console: Console) -> None:
    """Print a table per method and the notes; a narrow terminal does without the names of choices."""
    shown = [
        i for i, c in enumerate(render.EFFECT_COLUMNS) if c != "method" and (console.width >= WIDE or c != "choice")
    ]
    headings = [render.EFFECT_COLUMNS[i] for i in shown]
    console.print(choices.TITLE, style="bold")
    for method, group in render.by_method(found).items():
        console.print(f"\n{method}, {where}\n{render.usual_text(group)}")
        cells = ([line[i] for i in shown] for line in map(render.effect_cells, group))
        console.print(terminal_table(headings, cells, len(headings) - 4))
    console.print()
    for note in (render.EFFECT_NOTE, render.EFFECT_MEANING):
        console.print(note, style="dim")


def _say_pairs_elsewhere(records: Sequence[Record], console: Console) -> None:
    """Say how many pairs for our choices were run with a setting that is not the usual one, by that setting."""
    found: Counter[str] = Counter()
    variations = choices.find_variations(records)
    for choice in choices.read_choices():
        for pair in choices.answers(choice, variations):
            if pair.cell == choices.CELL and pair.varied.method == choice.method and len(pair.given) == 1:
                found.update(f"{key}={json.dumps(value)}" for key, value in pair.given.items())
    for setting, pairs in sorted(found.items()):
        console.print(f"{pairs} more where both runs have {setting}: add --set {setting}")


def run_figure(name: str, only: str, runs: Runs, place: Place, console: Console) -> None:
    """Run what a figure needs, draw it and show it; without matplotlib its numbers are written and shown alone."""
    draws = importlib.util.find_spec("matplotlib") is not None
    if not draws:
        console.print(
            f"{name}: matplotlib is not installed here, so only its numbers are written; to draw it too: "
            "pip install 'fedfeat[paper]'",
            style="yellow",
            markup=False,
        )
    options = FigureOptions(tuple(runs.overrides), only, experiments.QUICK_MARK if place.quick else "")
    planned = plan(experiments_of(FIGURES[name], place.quick, runs.seeds, options), place.folder)
    outcomes = run_all(planned, console, runs.pool, dry=runs.dry)
    (make_figure if draws else write_numbers)(FIGURES[name], outcomes, place.folder / "figures", options)
    show_figure(name, place, Format.terminal, console)
    exit_if_failed(outcomes, console)


def draw_figures(names: Sequence[str], place: Place, pool: RunPool, console: Console) -> None:
    """Draw figures from the numbers of real runs where there are some, and the others in small on the digits."""
    for name in names:
        if name not in FIGURES:
            raise FedfeatError(f"{name}: no such figure; {nearest(name, FIGURES)} (see 'fedfeat paper list')")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "paper", "drawing figures")
    chosen = [figure for name, figure in FIGURES.items() if not names or name in names]
    kept = {f.name: path for f in chosen if (path := missing.drawn_numbers(f, place.results)).is_file()}
    index = place.index(earlier=True)
    recorded = {f.name: runs for f in chosen if f.name not in kept and (runs := recorded_runs(f, index)) is not None}
    left = [f for f in chosen if f.name not in kept and f.name not in recorded]
    small = {f.name: experiments_of(f, True, experiments.first_seeds(1)) for f in left}
    distinct = {identity(config): config for configs in small.values() for config in configs}
    planned = plan(list(distinct.values()), place.folder / "runs")
    outcomes = finish_all(planned, console, pool) if planned else []
    by_identity = dict(zip(distinct, outcomes, strict=True))
    for figure in chosen:
        if figure.name in kept:
            write_atomically(place.folder / f"{figure.name}.json", kept[figure.name].read_bytes())
            drawn = draw_again(figure, place.folder)
        elif figure.name in recorded:
            drawn = make_figure(figure, recorded[figure.name].runs, place.folder, recorded[figure.name].options)
        else:
            found = [by_identity[identity(config)] for config in small[figure.name]]
            drawn = make_figure(figure, found, place.folder, FigureOptions(mark=experiments.QUICK_MARK))
        real = "" if figure.name in small else "numbers of real runs"
        console.print(f"{drawn.files[0]}  {', '.join(filter(None, (real, drawn.options.mark)))}")
    if not names:
        for path in draw_overview(index, place.folder):
            console.print(f"{path}  records of real runs")
    exit_if_failed(outcomes, console)


def show_figure(name: str, place: Place, format: Format, console: Console) -> None:
    """Print the numbers of a figure made before, the paper's statements about it, and where the drawing lies."""
    needed = ["--quick"] * place.quick + [f"--out {shlex.quote(str(place.out))}"] * (place.out is not None)
    drawn = read_figure(FIGURES[name], place.folder / "figures", " ".join(needed))
    numbers = drawn.numbers
    if format is Format.csv:
        print(numbers.to_csv(), end="")
        return
    if format is Format.markdown:
        rows = ([_text(row.get(key)) for key in numbers.columns] for row in numbers.rows)
        print(markdown_table(numbers.columns, rows, len(numbers.columns)), end="")
        return
    if format is not Format.terminal:
        raise FedfeatError(
            f"--format {format}: figures are printed as terminal, markdown or csv; the PDF goes into LaTeX"
        )
    console.print(drawn.figure.title, style="bold")
    if drawn.options.text:
        console.print(drawn.options.text, style="yellow")
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}  # by the columns they fill: of panels, of means
    for row in numbers.rows:
        kinds.setdefault(tuple(row), []).append(row)
    for columns, same in kinds.items():
        shown = [key for key in columns if any(row[key] is not None for row in same)]
        console.print(terminal_table(shown, ([_text(row[key]) for key in shown] for row in same), len(shown)))
        console.print()
    if drawn.findings:
        console.print("What the paper says, and whether these numbers say it too:")
    for finding in drawn.findings:
        console.print(f"{'yes' if finding.holds else 'NO '}  {finding.claim}: {finding.seen}")
    console.print(drawn.figure.note, style="dim")
    console.print("\n".join(str(path) for path in drawn.files))


def _text(value: str | int | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
