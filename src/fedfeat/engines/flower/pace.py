"""How often to look: Flower's own intervals of one and three seconds are longer than most rounds take here.

A message is announced before its parts have arrived. Whoever fetches it then waits a second before the next try, and
two before the one after. Here the waits are short. This reaches into Flower, so only in versions it was tested with.
"""

from __future__ import annotations

from functools import partial

import flwr
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid

TESTED = ("1.41.0", "1.42.0")
SHORTEST, LONGEST = 0.05, 2.0  # seconds between two looks for messages

pull_soon = partial(pull_objects, initial_backoff=SHORTEST, backoff_cap=0.4, max_tries_per_object=100_000)


def tested() -> bool:
    """Tell whether the installed version of Flower is one that this was tested with."""
    return flwr.__version__ in TESTED


def hasten_server() -> None:
    """Let the server app's grid fetch replies without long waits."""
    if tested():
        http_grid.pull_objects = pull_soon  # type: ignore[attr-defined]


def pause(idle: float) -> float:
    """Return how long to wait before the next look: a twentieth of the time since the last message."""
    return min(max(idle / 20, SHORTEST), LONGEST)
