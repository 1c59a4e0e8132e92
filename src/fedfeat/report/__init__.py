"""What came out, for people: tables, figures and one offline HTML page, all read from run folders."""

from fedfeat.report.collect import Group, Run, find_runs, group_runs, read_run
from fedfeat.report.figures import curves_png
from fedfeat.report.page import write_report

__all__ = ["Group", "Run", "curves_png", "find_runs", "group_runs", "read_run", "write_report"]
