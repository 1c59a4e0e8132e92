"""A page per method, and one table of all: from docstrings, settings and what methods declare to send."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from fedfeat.algorithm.registry import Part
from fedfeat.algorithm.sent import SYMBOLS, Sent
from fedfeat.core.errors import FedfeatError
from fedfeat.methods import PARTS
from reference_pages.captions import CAPTIONS, picture
from reference_pages.configuration import default_words, leaf_fields, markdown_row
from reference_pages.sections import IDEA, sections_of

NOTE = "<!-- Written by `python -m reference_pages` from {}; edit it there. -->\n"
INDEX_NOTE = NOTE.format("the docstrings of the methods")
HOME = "fedfeat.methods."
LONG = 80  # a default longer than this is left to the configuration reference
BYTES_WORDS = """\
Bytes are per client and task, on top of the model itself, which takes `4 * theta` bytes in each direction of a round.
Each loss that a client reports for the log takes 4 more, and so does its number of images."""


def built_in_parts() -> list[Part]:
    """Return the parts of the project itself, bases first, in alphabetical order."""
    own = [part for part in PARTS.values() if part.build.__module__.startswith(HOME)]
    return sorted(own, key=lambda part: (part.kind != "base", part.name))


def method_pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {"index.md": method_index(), **{f"{part.name}.md": method_page(part) for part in built_in_parts()}}


def method_index() -> str:
    """Return the table of all methods, and what the symbols of their formulas mean."""
    lines = ["# Methods", "", INDEX_NOTE, "| method | kind | what it is | up | down |", "|---|---|---|---|---|"]
    for part in built_in_parts():
        up, down = (_total(sent for sent in part.sends if sent.up == way) for way in (True, False))
        lines.append(markdown_row(f"[`{part.name}`]({part.name}.md)", part.kind, part.summary, up, down))
    lines += [
        "",
        "Join a base and add-ons with `+`, as in `fedcbdr+feat`. The last two columns say what crosses.",
        BYTES_WORDS,
        "[communication.md](../communication.md) has measured bytes beside them.",
        "",
        "## Symbols",
        "",
        "| symbol | meaning |",
        "|---|---|",
        *(markdown_row(f"`{name}`", meaning) for name, meaning in SYMBOLS.items()),
    ]
    return "\n".join(lines) + "\n"


def method_page(part: Part) -> str:
    """Return the page of a part as Markdown."""
    sections = sections_of(part)
    module = part.build.__module__.removeprefix("fedfeat.").replace(".", "/")
    source = f"src/fedfeat/{module}.py"
    blocks = [
        f"# {part.name}",
        NOTE.format(f"`{source}`").rstrip(),
        part.summary,
        f"Kind: {part.kind}. Code: [{module.rpartition('/')[2]}.py](../../{source}). All methods: [index](index.md).",
        f"## Idea\n\n{_markdown(sections[IDEA])}",
        *([picture(part.name, "../")] if part.name in CAPTIONS else []),
        f"## Objective\n\n{_objective(sections['Objective'])}",
        f"## What is sent\n\n{_sent(part)}",
        f"## Defaults\n\n{_defaults(part)}",
        f"## Deviations from the published program\n\n{_markdown(sections['Deviations'])}",
        f"## Run it\n\n{_command(part, sections.get('Run'))}",
    ]
    return "\n\n".join(blocks) + "\n"


def example_of(part: Part) -> str:
    """Return the composition that shows a part, with the part at its end."""
    if part.kind == "base":
        return part.name
    ending = [e for e in part.examples if e.endswith(f"+{part.name}")]
    return ending[0] if ending else f"fedcbdr+{part.name}"


def _sent(part: Part) -> str:
    if not part.sends:
        return "Nothing beyond the model, the losses and the number of images."
    lines = [BYTES_WORDS, "", "| entry | bytes | what it is |", "|---|---|---|"]
    for sent in part.sends:
        meaning = [sent.words if sent.up else sent.meaning, sent.remark]
        lines.append(markdown_row(f"`{sent.entry}`", formula_of(sent), "; ".join(m for m in meaning if m)))
    lines += ["", "An entry is `direction/operation/name`. Symbols: [index](index.md#symbols)."]
    return "\n".join(lines)


def _defaults(part: Part) -> str:
    lines = []
    for key, field, origin in leaf_fields(part.settings):
        if not any(fnmatchcase(key, pattern) for pattern in part.reads):
            continue
        if not origin:
            raise FedfeatError(f"{part.name}.{key}: nobody says where its default comes from; give it an origin")
        value = default_words(field)
        value = value if len(value) <= LONG else f"a list, see [configuration](../configuration.md#{part.table})"
        lines.append(markdown_row(f"`{key}`", value, field.description or "", origin))
    if not lines:
        return "There is nothing to set."
    head = [f"Keys of the table `[{part.table}]`:", ""]
    head += ["| key | default | meaning | where the default comes from |", "|---|---|---|---|"]
    return "\n".join([*head, *lines])


def _command(part: Part, run: str | None) -> str:
    # A line with a place-holder in capitals is for people; the others are checked by the tests.
    language = "console" if re.search(r"[A-Z]{3}", run or "") else "sh"
    return f"```{language}\nfedfeat run configs/digits.toml --set method={run or example_of(part)}\n```"


def formula_of(sent: Sent) -> str:
    """Return the bytes of an entry, as a formula in code."""
    return ("at most " if sent.at_most else "") + f"`{sent.formula}`"


def _total(sends: Iterable[Sent]) -> str:
    """Return what goes one way in a few words: single numbers are not worth a line of a table."""
    found = list(sends)
    large = [formula_of(sent) for sent in found if sent.shape and any(isinstance(size, str) for size in sent.shape)]
    words = [*dict.fromkeys(large), *(["single numbers"] if len(large) < len(found) else [])]
    return ", ".join(words) or "nothing"


def _objective(text: str) -> str:
    return _markdown(text) if "$$" in text else f"```text\n{text}\n```"


def _markdown(text: str) -> str:
    return text.replace("``", "`")
