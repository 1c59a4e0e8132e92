"""The two files that Flower ships to its processes: a shim around the package that is installed there anyway."""

from __future__ import annotations

from fedfeat import __version__

SHIM = """from fedfeat.engines.flower.client_app import app as client
from fedfeat.runs.server_app import app as server

__all__ = ["client", "server"]
"""

PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedfeat-app"
version = "{__version__}"
dependencies = []

[tool.flwr.app]
publisher = "fedfeat"

[tool.flwr.app.components]
serverapp = "fedfeat_app:server"
clientapp = "fedfeat_app:client"

[tool.flwr.app.config]
folder = ""
"""


def app_files() -> dict[str, bytes]:
    """Return the app by file name; no code of ours travels, so clients run what they have installed."""
    return {"pyproject.toml": PROJECT.encode(), "fedfeat_app.py": SHIM.encode()}
