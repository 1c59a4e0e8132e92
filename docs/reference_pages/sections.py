"""What a method's module says about it: sections of its docstring with fixed headings.

    Objective:              equations, in Markdown with $$; without them, text that is shown as it is
    Defaults:               a line per key of the settings: ``KEY: where the value comes from``
    Departures:             a list of what differs from the published program

Keys may end in ``*``. A heading followed by names in brackets, ``Objective (etf, gsa):``, is for these parts alone.
What stands before the first heading is the idea; parts that share a file have sections called ``Idea``. A section
``Keys`` names the keys of a shared table that a part reads, and ``Run`` holds what follows ``method=`` on the command
line where the plain one would not do.
"""

from __future__ import annotations

import inspect
import re
import sys
from fnmatch import fnmatchcase

from fedfeat.algorithm.registry import Part
from fedfeat.core.errors import FedfeatError

REQUIRED = ("Objective", "Defaults", "Departures")
OPTIONAL = ("Idea", "Keys", "Run")
_HEADING = re.compile(r"([A-Z]\w+)(?: \(([\w, -]+)\))?:")


def sections_of(part: Part) -> dict[str, str]:
    """Return the sections of a part by heading, the idea among them; a missing one is refused."""
    text = inspect.cleandoc(sys.modules[part.build.__module__].__doc__ or "")
    where = f"{part.build.__module__}: the docstring"
    idea: list[str] = []
    found: dict[str, list[str]] = {}
    own: set[str] = set()  # headings that name this part, which win over those for all
    lines = idea
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading is None:
            lines.append(line)
            continue
        name, names = heading[1], [n.strip() for n in (heading[2] or "").split(",") if n.strip()]
        if name not in REQUIRED + OPTIONAL:
            raise FedfeatError(f"{where} has a section {name!r}; known ones are {', '.join(REQUIRED + OPTIONAL)}")
        lines = []
        if part.name in names or (not names and name not in own):
            found[name] = lines
        if part.name in names:
            own.add(name)
    missing = [name for name in REQUIRED if not "".join(found.get(name, ())).strip()]
    if missing:
        raise FedfeatError(f"{where} has no section {', '.join(missing)} for {part.name!r}; write it")
    return {"Idea": "\n".join(idea).strip(), **{k: inspect.cleandoc("\n" + "\n".join(v)) for k, v in found.items()}}


def origins_of(part: Part, keys: list[str]) -> dict[str, str]:
    """Return where the default of each key comes from; a key without a word about it is refused, as is the reverse."""
    text = sections_of(part)["Defaults"]
    if not keys and text == "none":
        return {}
    lines = [line.partition(": ") for line in text.splitlines()]
    patterns = {key: words for key, _, words in lines}
    origins = {}
    for key in keys:
        matching = [p for p in patterns if fnmatchcase(key, p)]
        if not matching:
            raise FedfeatError(f"{part.build.__module__}: Defaults of {part.name!r} do not mention {key!r}; add a line")
        origins[key] = patterns[max(matching, key=len)]
    idle = [p for p in patterns if not any(fnmatchcase(key, p) for key in keys)]
    if idle:
        raise FedfeatError(f"{part.build.__module__}: Defaults of {part.name!r} mention {idle[0]!r}, which is no key")
    return origins


def keys_of(part: Part, keys: list[str]) -> list[str]:
    """Return the keys that a part reads: all, or those that its section ``Keys`` names."""
    wanted = sections_of(part).get("Keys")
    if wanted is None:
        return keys
    return [key for key in keys if any(fnmatchcase(key, p.strip()) for p in wanted.split(","))]
