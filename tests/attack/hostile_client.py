"""A client that does harm: it connects with a key and trains like an honest one, and spoils what it sends by a plan.

python hostile_client.py SETTINGS.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from hostile_replies import SPOILERS

from fedfeat.engines.flower import resident
from fedfeat.engines.flower.app import make_client, show_log
from fedfeat.engines.flower.client import FederationClient
from fedfeat.engines.flower.codec import Packed
from fedfeat.engines.flower.messages import Header


def spoil_answers(client: FederationClient, plan: dict[str, str]) -> None:
    """Put what a plan says in the place of a client's answers."""
    ask = client.ask

    def spoilt(header: Header, request: Packed) -> tuple[Header, Packed]:
        told, answer = ask(header, request)
        what = plan.get(f"{header['task'] + 1}.{header['round'] + 1}.{header['op']}")
        if what == "silent":
            time.sleep(1000)
        return SPOILERS[what].spoil(told, answer) if what else (told, answer)

    client.ask = spoilt  # type: ignore[method-assign]


def main() -> None:
    """Take part until stopped; a connection that breaks is opened again."""
    show_log(dates=True)
    settings: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    client = make_client(settings)
    spoil_answers(client, settings["plan"])
    try:
        resident.stay(client, settings["server"], Path(settings["ca"]), Path(settings["key"]))
    except (SystemExit, Exception) as error:  # not let in, or the server is not there yet
        print(f"{type(error).__name__}: {error}", flush=True)
    time.sleep(1.0)
    # Flower ends a process that was not let in after some seconds, whatever it does by then.
    os.execv(sys.executable, [sys.executable, *sys.argv])


if __name__ == "__main__":
    main()
