"""The part of the reproduction page on choices that were measured in small, on the built-in digits."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from fedfeat_reproduction.choices_effects import MEASURES, Effect, Measure, within_spread
from fedfeat_reproduction.choices_record import MeasuredChoices
from fedfeat_reproduction.choices_runs import Protocol, choose_alternatives
from fedfeat_reproduction.choices_show import by_method, settings_text, to_markdown, usual_text

COMMAND = "fedfeat paper run choices --quick --seeds 3 --record results/quick/choices.json"


def small_section(kept: MeasuredChoices) -> str:
    """Return what the runs were, the table, and which effects stand out from their spread."""
    parts = [_what(kept), to_markdown(kept.effects), _usual(kept.effects), _readings(kept.effects), _missing(kept)]
    return f"\n### The same choices on the {kept.dataset}\n\n" + "\n".join(part for part in parts if part)


def _what(kept: MeasuredChoices) -> str:
    scenario = kept.setting.get("scenario", {})
    machines = sorted({f"torch {e.get('torch', '?')}, commit {e.get('commit', '?')}" for e in kept.environments})
    text = (
        f"These are not the paper's images, network or number of rounds: the built-in {kept.dataset} (8 by 8 pixels), "
        f"a small network, {kept.rounds} rounds a task, {scenario.get('budget', '?')} exemplars of each. An effect "
        "here shows that a choice can matter; its size, and even its sign, may be another on photographs. Class order "
        "and partitions are the same for all seeds, so the spread is that of initial weights and batches. Effects are "
        "those of the setting shown instead of ours, varied less usual run of the same seed: mean and standard "
        "deviation over the seeds, in points of final accuracy. In parentheses where the mean is no larger than the "
        "deviation: such an effect may be chance, and with few seeds a larger one may be too. *None* means that "
        f"every pair of runs has the same accuracy. `{COMMAND}` runs it in minutes on a processor. Run with "
        f"{'; '.join(machines)}."
    )
    return _wrapped(text)


def _usual(effects: Sequence[Effect]) -> str:
    lines = (f"- `{method}`, {usual_text(found)}" for method, found in by_method(effects).items())
    return "What the effects start from:\n\n" + "".join(_wrapped(line, "  ") for line in lines)


def _readings(effects: Sequence[Effect]) -> str:
    return "What stands out from its spread:\n\n" + "".join(_reading(effects, measure) for measure in MEASURES)


def _reading(effects: Sequence[Effect], measure: Measure) -> str:
    """Return what stands out under a prediction, the largest effect first."""
    found = [(change, effect) for effect in effects if (change := effect.change(measure)) and change.std is not None]
    beyond = sorted((p for p in found if not within_spread(p[0])), key=lambda p: -abs(p[0].mean))
    told = ", ".join(f"`{settings_text(effect.changes)}` {change.mean:+.2f}" for change, effect in beyond)
    return _wrapped(f"- {measure}, {len(beyond)} of {len(found)}{': ' if told else ''}{told}", "  ")


def _missing(kept: MeasuredChoices) -> str:
    """Name what was not measured, and why."""
    there = [effect.changes for effect in kept.effects]
    left = [a for a in choose_alternatives() if dict(a.changes) not in there]
    quick = Protocol(quick=True)
    told = [f"`{settings_text(a.changes)}` ({quick.objection(a) or 'no pair of runs yet'})" for a in left]
    return _wrapped(f"Not measured on the {kept.dataset}: {', '.join(told)}.") if told else ""


def _wrapped(text: str, indent: str = "") -> str:
    """Return lines of the usual length; code stays on one of them."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, 118, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace("\0", " ") + "\n"
