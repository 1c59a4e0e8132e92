"""Small JSON records of what was really run: setting, accuracies, versions, hardware, commit, images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedfeat.config.config import Config, parse_config
from fedfeat.config.renamed import as_recorded
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from fedfeat.runs.folder import UNKNOWN, RunFolder, checkout_commit
from fedfeat.runs.folder import environment as environment_here
from fedfeat.runs.identity import folder_name

Accuracy = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Matrix = list[list[Accuracy]]


class Record(BaseModel):
    """One finished run, without what is bulky: no confusion tables, no rounds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    method: str
    dataset: str
    seed: int
    recipe: str | None = Field(None, description="bundle of settings that was laid over the configuration")
    images: str = Field(UNKNOWN, description="where the images came from, and whether they were lossless")
    final_accuracy: Accuracy
    final_accuracy_uncorrected: Accuracy
    accuracy_after_task: list[Accuracy] = Field(min_length=1)
    accuracy_after_task_uncorrected: list[Accuracy]
    accuracy_matrix: Matrix
    accuracy_matrix_uncorrected: Matrix
    accuracy_of_variants: dict[str, list[Accuracy]] = {}
    accuracy_matrix_of_variants: dict[str, Matrix] = {}
    average_incremental_accuracy: Accuracy
    forgetting: float
    backward_transfer: float
    numbers: dict[str, float] = {}
    notes: list[str] = []
    bytes_up: int
    bytes_down: int
    traffic: dict[str, int] = {}
    images_trained: int = 0
    images_per_second: float = 0.0
    seconds: float = 0.0
    wall_seconds: float | None = Field(None, description="with loading, compiling and choosing exemplars")
    config: dict[str, Any]
    environment: dict[str, Any] = {}
    commit: str = Field(UNKNOWN, description="commit of this project that ran; '+' for one with changes")

    @field_validator("config")
    @classmethod
    def _of_a_run(cls, config: dict[str, Any]) -> dict[str, Any]:
        missing = [key for key in ("scenario", "train") if not isinstance(config.get(key), dict)]
        if missing:
            raise ValueError(f"expected a run's settings, and {' and '.join(missing)} are not among them")
        return config

    @property
    def validates(self) -> bool:
        """Whether its accuracies are of held-out training images instead of test images."""
        return bool(self.config.get("data", {}).get("validation"))

    def parsed_config(self) -> Config:
        """Return the run's configuration; with the values it ran with, whatever is called or done otherwise since."""
        return parse_config(as_recorded(self.config), where=f"{self.method} seed {self.seed}")

    def to_json(self) -> str:
        """Return the record as text: one key per line, measured numbers with eight digits."""
        kept = self.model_dump(exclude={"recipe"} if self.recipe is None else None)
        values = {k: v if k == "config" else _rounded(v) for k, v in kept.items()}
        lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in values.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def record(
    result: Mapping[str, Any],
    *,
    images: str = UNKNOWN,
    environment: Mapping[str, Any] | None = None,
    commit: str | None = None,
    **changes: Any,
) -> Record:
    """Return the record of a result (``result.json``, or what ``Experiment.run`` returns).

    ``images`` says whether they were lossless; ``environment`` is this machine's unless told; ``commit`` likewise.
    """
    if environment is None:
        environment = environment_here()
    found = {
        **result,
        "images": images,
        # The name of somebody's kernel says nothing about a result.
        "environment": {key: value for key, value in environment.items() if key != "platform"},
        "commit": commit or checkout_commit(),
        **changes,
    }
    return Record.model_validate(found)


def write_record(kept: Record, folder: Path) -> Path:
    """Write a record under a name that says what it is of; a later run of the same experiment takes its place."""
    path = folder / f"{folder_name(kept.parsed_config())}.json"
    write_atomically(path, kept.to_json().encode())
    return path


def record_of_run(path: Path, images: str = UNKNOWN) -> Record:
    """Return the record of a finished run folder; its environment is the one it ran in."""
    folder = RunFolder.open(path)
    result = folder.result()
    if result is None:
        raise FedfeatError(f"{path}: the run has not finished; finish it with 'fedfeat resume {path}'")
    saved = path / "env.json"
    try:
        environment = json.loads(saved.read_text()) if saved.is_file() else {}
        return record(result, images=images, environment=environment, commit=environment.get("commit") or UNKNOWN)
    except (ValueError, TypeError, AttributeError) as error:
        raise FedfeatError(f"{path}: not the files of a finished run ({first_problem(error)})") from None


def read_record(path: Path) -> Record:
    """Read one record; a file that is none is refused with the field that is wrong."""
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FedfeatError(f"{path}: not a record of a run ({first_problem(error)}); remove or repair it") from None


def first_problem(error: Exception) -> str:
    """Return the first thing that is wrong with a file, by its field."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(str(p) for p in first['loc']) or 'file'}: {first['msg']}"


def read_records(folder: Path) -> list[Record]:
    """Read every record of a folder; a folder that is not there has none."""
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def records_of_runs(folders: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """Return the records of the finished runs below some folders, up to two levels down, and what is damaged."""
    found = {
        p.parent for folder in folders for pattern in ("", "*/", "*/*/") for p in folder.glob(f"{pattern}result.json")
    }
    records: list[Record] = []
    damaged: list[str] = []
    for path in sorted(found):
        try:
            records.append(record_of_run(path))
        except FedfeatError as error:
            damaged.append(str(error))
    return records, damaged


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value
