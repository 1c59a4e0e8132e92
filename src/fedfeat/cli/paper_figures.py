"""What ``fedfeat paper figures`` does: draw every figure from the best numbers that are at hand."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from fedfeat.cli.paper_output import Place, need_matplotlib
from fedfeat.cli.progress import exit_if_failed, finish_all
from fedfeat.core.errors import FedfeatError, nearest
from fedfeat.core.files import write_atomically
from fedfeat.runs.identity import identity
from fedfeat.runs.sweep import RunPool, plan
from fedfeat_reproduction import experiments, missing
from fedfeat_reproduction.figures import FIGURES, FigureOptions, draw_again, experiments_of, make_figure
from fedfeat_reproduction.figures.overview import draw_overview


def draw_figures(names: Sequence[str], place: Place, pool: RunPool, console: Console) -> None:
    """Draw figures from the numbers of real runs where there are some, and the others in small on the digits."""
    for name in names:
        if name not in FIGURES:
            raise FedfeatError(f"{name}: no such figure; {nearest(name, FIGURES)} (see 'fedfeat paper list')")
    need_matplotlib("figures")
    chosen = [figure for name, figure in FIGURES.items() if not names or name in names]
    kept = {f.name: path for f in chosen if (path := missing.drawn_numbers(f, place.results)).is_file()}
    small = {f.name: experiments_of(f, True, experiments.first_seeds(1)) for f in chosen if f.name not in kept}
    distinct = {identity(config): config for configs in small.values() for config in configs}
    planned = plan(list(distinct.values()), place.folder / "runs")
    outcomes = finish_all(planned, console, pool=pool) if planned else []
    by_identity = dict(zip(distinct, outcomes, strict=True))
    for figure in chosen:
        if figure.name in kept:
            write_atomically(place.folder / f"{figure.name}.json", kept[figure.name].read_bytes())
            drawn = draw_again(figure, place.folder)
        else:
            found = [by_identity[identity(config)] for config in small[figure.name]]
            drawn = make_figure(figure, found, place.folder, FigureOptions(mark=experiments.QUICK_MARK))
        console.print(f"{drawn.files[0]}  {drawn.options.mark or 'numbers of real runs'}")
    if not names:
        for path in draw_overview(place.index(), place.folder):
            console.print(f"{path}  records of real runs")
    exit_if_failed(outcomes, console)
