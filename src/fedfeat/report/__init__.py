"""What came out, for people: tables, figures and one offline HTML page, all read from run folders."""

from fedfeat.report.collect import Run, find_runs, read_run, summary_rows
from fedfeat.report.figures import curves_png
from fedfeat.report.page import write_report

__all__ = ["Run", "curves_png", "find_runs", "read_run", "summary_rows", "write_report"]
