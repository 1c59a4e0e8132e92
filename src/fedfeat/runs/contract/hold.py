"""Holding a method to the contract, promise by promise."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator

from fedfeat.core.errors import ConfigError, FedfeatError, nearest
from fedfeat.runs.contract import exchanging, repeating, running, stepping, streams
from fedfeat.runs.contract.promise import Broken, NotApplicable, Outcome, Promise
from fedfeat.runs.contract.trial import Trial

THE_CONTRACT = (
    *(running.runs, running.learns, running.shared_start),
    *(repeating.random, repeating.again, repeating.resumes, repeating.client_order),
    *(repeating.by_address, repeating.seeds),
    *(exchanging.sends, exchanging.own_samples, exchanging.budget, exchanging.counted, exchanging.drop_outs),
    *(running.odd_clients, running.nobody),
    *(streams.blurry, streams.pace, streams.domains),
    *(stepping.settings, stepping.device, stepping.vectorised, stepping.captured),
)
PROMISES = {promise.name: promise for promise in THE_CONTRACT}


def hold(trial: Trial, names: Collection[str] = ()) -> Iterator[Outcome]:
    """Check some promises and what they need, or all of them.

    One whose needs are broken is left out, since it would say the same again.
    """
    verdicts: dict[str, str] = {}
    for promise in chosen(names):
        missing = next((name for name in promise.needs if verdicts[name] != "kept"), None)
        if missing is not None:
            outcome = Outcome(promise, "not checked", reason=f"first {missing!r} has to pass")
        else:
            outcome = check(promise, trial)
        verdicts[promise.name] = outcome.verdict
        yield outcome


def chosen(names: Collection[str]) -> list[Promise]:
    """Return promises by name with all that they need, in the order of the contract; without names all of them."""
    wanted: set[str] = set()
    waiting = list(names or PROMISES)
    while waiting:
        name = waiting.pop()
        if name not in PROMISES:
            raise ConfigError(f"the contract has no promise {name!r}; {nearest(name, PROMISES)}")
        wanted.add(name)
        waiting += PROMISES[name].needs
    return [promise for promise in THE_CONTRACT if promise.name in wanted]


def check(promise: Promise, trial: Trial) -> Outcome:
    """Check one promise; an error in the author's code breaks it."""
    try:
        keep(promise, trial)
    except NotApplicable as reason:
        return Outcome(promise, "not checked", reason=str(reason))
    except Broken as broken:
        return Outcome(promise, "broken", broken)
    return Outcome(promise, "kept")


def keep(promise: Promise, trial: Trial) -> None:
    """Check one promise and raise what breaks it."""
    try:
        promise.check(trial)
    except (Broken, NotApplicable):
        raise
    except FedfeatError as error:
        raise Broken(str(error)) from error
    except Exception as error:
        where = trial.source.behind_error(error)
        note = f" ({error.__notes__[0]})" if getattr(error, "__notes__", None) else ""
        if where is None:  # not the author's code: what happened is for us to find
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
        raise Broken(f"{type(error).__name__}: {' '.join(str(error).split())}{note}", "", where) from error
