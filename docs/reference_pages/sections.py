"""What a method's file says about it in docstrings: text first (the idea), then sections with fixed headings.

    Objective:              equations, in Markdown with $$; without them, text that is shown as it is
    Deviations:             a list of what differs from the published program
    Run:                    what follows ``method=`` on the command line where the plain name would not do

They stand in the docstring of the module or of the function that builds the part, whose own win.
"""

from __future__ import annotations

import inspect
import re
import sys

from fedfeat.algorithm.registry import Part
from fedfeat.core.errors import FedfeatError

IDEA = "Idea"
REQUIRED = ("Objective", "Deviations")
OPTIONAL = ("Run",)
_HEADING = re.compile(r"([A-Z]\w+):")


def sections_of(part: Part) -> dict[str, str]:
    """Return the sections of a part by heading, the idea among them; a missing one is refused."""
    _, _, text = (inspect.getdoc(part.build) or "").partition("\n")
    module = inspect.cleandoc(sys.modules[part.build.__module__].__doc__ or "")
    found = {**_parsed(module, part), **_parsed(text, part)}
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        where = f"{part.build.__module__}: the docstring"
        raise FedfeatError(f"{where} has no section {', '.join(missing)} for {part.name!r}; write it")
    return found


def _parsed(text: str, part: Part) -> dict[str, str]:
    lines: list[str] = []
    found = {IDEA: lines}
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading is None:
            lines.append(line)
            continue
        if heading[1] not in REQUIRED + OPTIONAL:
            known = ", ".join(REQUIRED + OPTIONAL)
            raise FedfeatError(f"{part.build.__module__}: a section {heading[1]!r}; known ones are {known}")
        found[heading[1]] = lines = []
    whole = {name: inspect.cleandoc("\n" + "\n".join(body)) for name, body in found.items()}
    return {name: body for name, body in whole.items() if body}
