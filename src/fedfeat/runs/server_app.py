"""The server app: our loop inside Flower's server process. It always tries to resume what the run folder holds."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat.core.lock import lock_folder
from fedfeat.data import Dataset
from fedfeat.engines.flower.app import show_log
from fedfeat.engines.flower.engine import FlowerEngine
from fedfeat.engines.flower.messages import Channel
from fedfeat.runs.experiment import Result, go_on
from fedfeat.runs.folder import RunFolder
from fedfeat.scenario import Scenario

ERROR_FILE, SERVER_LOG = "error.json", "server.log"
GIVEN_UP = 120.0  # seconds until a server app that Flower gave up has ended
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of a run folder; what the user has to fix is left in a file beside it."""
    folder = Path(str(context.run_config["folder"]))
    show_log(dates=True, file=folder / SERVER_LOG)  # Flower keeps what its server app prints to itself
    try:
        run_in(folder, grid)
    except FedfeatError as error:
        write_atomically(folder / ERROR_FILE, json.dumps({"error": str(error)}).encode())


def run_in(folder: Path, grid: Grid) -> Result:
    """Begin or continue the run of a folder with the clients that a grid reaches."""

    def engine(config: Config, dataset: Dataset, scenario: Scenario, method: Method) -> FlowerEngine:
        channel = Channel(grid, config.federation.poll)
        return FlowerEngine(config, dataset, scenario, method, channel=channel, folder=folder)

    with lock_folder(folder, GIVEN_UP):
        return go_on(RunFolder.open(folder), engine=engine)
