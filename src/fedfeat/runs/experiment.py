"""From a configuration to a result: start an experiment in a folder, or take it up where it stopped."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedfeat.algorithm.method import Method
from fedfeat.config.config import Config
from fedfeat.core.errors import CheckpointError, ConfigError
from fedfeat.core.files import remove_leftovers, sha256, write_json
from fedfeat.core.lock import lock_folder
from fedfeat.data import Dataset, fingerprint, load_dataset
from fedfeat.data.owned import metadata_only
from fedfeat.data.settings import OWNED
from fedfeat.engines.factory import EngineFactory, make_engine
from fedfeat.federation.evaluation import HELD, SENDS
from fedfeat.federation.loop import Event, Federation, Listener, Saver
from fedfeat.federation.metrics import over_tasks
from fedfeat.federation.privacy import statement
from fedfeat.federation.progress import Progress
from fedfeat.federation.rollback import repeated_rounds, rollbacks_of
from fedfeat.federation.secure.exchange import check_rounds
from fedfeat.federation.secure.sums import Sums
from fedfeat.models import PretrainedBackbone
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import deciding_settings, refuse_other_run
from fedfeat.runs.model_file import CARD, ModelCard, refuse_other_backbone, write_model
from fedfeat.runs.trackers.tracked import tracked
from fedfeat.runs.workload import Workload
from fedfeat.scenario import Scenario
from fedfeat.scenario.build import named_classes, named_scenario, scenario_of

Result = dict[str, Any]
TRAINED = {
    "nothing": "the backbone is frozen",
    "lora": "the backbone is frozen, its adapters are trained",
    "all": "the whole backbone is trained",
}


def run_name(config: Config) -> str:
    """Return the run folder's name: what was run, on what, with which seed."""
    return config.run.name or f"{config.data.name}-{config.method}-seed{config.seed}"


def run_folder(config: Config, out: Path | None = None) -> Path:
    """Return the folder of a run: as told, or by its name."""
    return out or Path(config.run.out) / run_name(config)


def start(config: Config, out: Path | None = None, listeners: tuple[Listener, ...] = ()) -> Result:
    """Run an experiment from the beginning and return its result."""
    experiment = Experiment(config)
    folder = experiment.new_folder(run_folder(config, out))
    with lock_folder(folder.path):
        return experiment.run(folder, Progress(), listeners)


def resume(path: Path, listeners: tuple[Listener, ...] = (), engine: EngineFactory = make_engine) -> Result:
    """Continue an interrupted run; the outcome has the same bytes as that of an uninterrupted one."""
    folder = RunFolder.open(path)
    if engine is make_engine and folder.result() is None:
        _refuse_federation(folder)
    with lock_folder(path):
        return go_on(folder, listeners, engine)


def _refuse_federation(folder: RunFolder) -> None:
    """Say how a run continues whose clients are processes of their own."""
    if folder.config().engine.name == "flower":
        again = f"{folder.config_path} --out {folder.path}"
        raise ConfigError(
            f"{folder.path}: this run is a federation, whose clients are processes of their own; continue it with "
            f"'fedfeat federate {again}' where all of it ran on one machine, or else with 'fedfeat server {again}' and "
            "the options of before"
        )


def go_on(folder: RunFolder, listeners: tuple[Listener, ...] = (), engine: EngineFactory = make_engine) -> Result:
    """Continue an interrupted run in a folder that the caller has to itself."""
    path = folder.path
    remove_leftovers(path)
    config = folder.config()
    loaded = folder.checkpoints.load(alone=True)
    if loaded is not None:
        refuse_other_run(path, config, loaded[2]["config"])
    done = folder.result()
    if done is not None:
        return done
    experiment = Experiment(config, engine=engine)
    if loaded is None:  # it begins anew, with what is there now
        folder.cut_events(0)
        folder.write_scenario(experiment.described_scenario)
        return experiment.run(folder, Progress(), listeners)
    progress, states, manifest = loaded
    if manifest["data"] != experiment.fingerprint:
        raise CheckpointError(
            f"{path}: the data set {config.data.name!r} found now is not the one the run began with; "
            "point data.path to the original files"
        )
    begun = manifest.get(CARD, {}).get("backbone")
    refuse_other_backbone(config.model.path, begun, experiment.card.backbone)
    folder.cut_events(manifest["events_size"], manifest.get("events_sha256"))
    experiment.engine.restore(states)
    progress.move_to(experiment.engine.device)
    return experiment.run(folder, progress, listeners)


class Experiment:
    """Everything a run needs, put together and checked before anything is written."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset | None = None,
        scenario: Scenario | None = None,
        engine: EngineFactory = make_engine,
    ) -> None:
        self.config = config
        self.method: Method = config.build_method()
        if config.data.name == OWNED:
            dataset = metadata_only(config.data, named_classes(config.scenario))
            scenario = named_scenario(config.scenario, config.seed)
        self.dataset = dataset or load_dataset(config.data, seed=config.seed)
        self.scenario = scenario or scenario_of(self.dataset, config.scenario, config.seed)
        if config.privacy.secure_aggregation:
            check_rounds(config, self.scenario)
        self.engine = engine(config, self.dataset, self.scenario, self.method)
        self.fingerprint = fingerprint(self.dataset)
        backbone = self.engine.network.backbone
        self.card = ModelCard.of(self.dataset, self.scenario, backbone.fingerprint, config.data.resize)
        dim = backbone.feature_dim
        if self.method.has_etf_head and dim < self.dataset.num_classes:
            raise ConfigError(
                f"method: the ETF head of {config.method!r} needs at least as many feature dimensions as classes, "
                f"and this model has {dim} for {self.dataset.num_classes} classes; raise model.width or take resnet18"
            )
        self._warn_of_single_images()

    def _warn_of_single_images(self) -> None:
        """Say which clients may meet a batch that BatchNorm cannot normalise: one image, a feature map of 1 x 1."""
        batch, backbone = self.config.train.batch, self.engine.network.backbone
        if self.config.model.norm != "batch" or isinstance(backbone, PretrainedBackbone):
            return
        if any(backbone.map_size(s) > 1 for s in self.dataset.image_shape[:2]):
            return
        met = [] if self.dataset.private else self._single_images(batch)
        if met or self.method.replay is not None or self.dataset.private:
            where = met or ["some client, depending on how many images it keeps"]
            others = f" and {len(where) - 1} more" if len(where) > 1 else ""
            warnings.warn(
                "train.batch: BatchNorm cannot train on a batch of one image where the feature map is 1 x 1, and one "
                f"may be left over for {where[0]}{others}; choose another "
                f"train.batch (now {batch}), or set model.norm = 'group'",
                stacklevel=3,
            )

    def _single_images(self, batch: int) -> list[str]:
        """Return the clients whose last batch is one image, if the images of a task are all they train on."""
        tasks = range(1 if self.method.replay is not None else self.scenario.num_tasks)
        sizes = [(t, k, len(self.scenario.samples(t, k))) for t in tasks for k in self.scenario.present(t)]
        return [f"client {k} in task {t + 1}" for t, k, size in sizes if size and size % batch == 1 % batch]

    @property
    def notes(self) -> tuple[str, ...]:
        """What the log and the result should say about this experiment."""
        notes = list(self.method.notes)
        network = self.engine.network
        if isinstance(network.backbone, PretrainedBackbone):
            trained = sum(p.numel() for name, p in network.trained_parameters() if name.startswith("backbone."))
            every = sum(p.numel() for p in network.backbone.parameters())
            notes.append(f"model: {trained:,} of {every:,} backbone parameters are trained, sent and saved")
        elif not self.method.trains:
            notes.append(
                "model: the backbone is freshly initialised and stays so; model.name = hf takes a pre-trained one"
            )
        if self.config.scenario.brings == "domains":
            notes.append("scenario: all classes come in task 1, so none is old: what weighs old against new ones rests")
        if self.config.data.validation is not None:
            count = len(self.dataset.test_labels)
            notes.append(f"validation: accuracies are of {count} held-out training images, not of test images")
        return tuple(notes)

    @property
    def described_scenario(self) -> dict[str, Any]:
        """The scenario as a run folder tells it."""
        domains = self.dataset.domains
        return self.scenario.to_json(self.dataset.class_names, domains.names if domains else ())

    def workload(self, config: Config, scenario: Scenario) -> Workload:
        """Return what there is to do, with this configuration and scenario or with those of a rehearsal."""
        return Workload(config, scenario, self.method, self.engine.network.backbone.feature_dim)

    def new_folder(self, path: Path) -> RunFolder:
        """Make a folder for a run of this experiment."""
        return RunFolder.create(path, self.config, self.described_scenario)

    def run(self, folder: RunFolder, progress: Progress, listeners: tuple[Listener, ...]) -> Result:
        """Run to the end, with events and checkpoints in the folder."""
        with tracked(self.config, folder.path) as trackers:
            return self._run(folder, progress, (*listeners, *trackers))

    def _run(self, folder: RunFolder, progress: Progress, listeners: tuple[Listener, ...]) -> Result:
        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)

        def emit(event: Event) -> None:
            folder.append_event(event)
            tell(event)

        begun = self.start_event()
        if len(progress.weights) == 0:
            folder.append_event(begun)
        where = {"task": progress.task + 1, "round": progress.round} if len(progress.weights) else None
        images = [len(split.indices) for split in self.scenario.splits]
        tell({**begun, "folder": str(folder.path), "resumed_at": where, "images": images})
        federation = Federation(self.config, self.scenario, self.method, self.engine, progress, folder=folder.path)
        federation.run(emit, self._saver(folder))
        result = summarise(self.config, self.scenario, progress, self.notes) | self._privacy(folder.path)
        if rollbacks := rollbacks_of(folder.path):
            result["rollbacks"] = rollbacks
        write_json(folder.result_path, result)
        tell({"event": "end", "folder": str(folder.path), "result": result})
        return result

    def _saver(self, folder: RunFolder) -> Saver:
        last = time.monotonic()

        def save(progress: Progress) -> bool:
            nonlocal last
            if not progress.finished and time.monotonic() - last < self.config.run.checkpoint_seconds:
                return False
            if progress.finished and self.config.run.keep_models:
                write_model(folder.path, self.card, progress)
            extra = {
                "config": deciding_settings(self.config),
                "data": self.fingerprint,
                "events_size": folder.events_size(),
                "events_sha256": sha256(folder.events_path),
                CARD: self.card.model_dump(mode="json"),
            }
            keep = self.config.run.keep_task_ends
            folder.checkpoints.save(progress, self.engine.states, self.engine.touched, extra, keep_ends=keep)
            self.engine.touched.clear()
            last = time.monotonic()
            return True

        return save

    def _privacy(self, folder: Path) -> Result:
        """Return what the result says about privacy, if anything was asked for; a repeated round counts again."""
        settings = self.config.privacy
        if settings.clip is None and not settings.secure_aggregation:
            return {}
        sends = {*self.method.sends, *((*SENDS, *HELD) if self.dataset.private else ())}
        releases = self.scenario.num_tasks * self.config.train.rounds + repeated_rounds(folder)
        stated = statement(settings, releases, sends)
        if settings.secure_aggregation:
            sums = Sums(self.config, self.method, private=self.dataset.private)
            stated |= {"secure_aggregation": True, "fewest_clients": sums.fewest, "summed": sorted(sums.ops)}
        return {"privacy": stated}

    def start_event(self) -> Event:
        """Return what is put together here, as the first event of a run tells it."""
        return {
            "event": "start",
            "method": self.config.method,
            "dataset": self.dataset.name,
            "tasks": self.scenario.num_tasks,
            "rounds": self.method.rounds(self.config.train.rounds),
            "clients": self.scenario.num_clients,
            "device": str(self.engine.device),
            "parameters": sum(p.numel() for p in self.engine.network.backbone.parameters()),
            "notes": list(self.notes),
            "predictions": self.method.prediction_labels(),
            "aggregation": self._aggregation(),
        }

    def _aggregation(self) -> str:
        """Say what becomes of the clients' models."""
        if not self.method.trains:
            return "no rounds: clients are asked once, at the end of each task"
        norm = "GroupNorm, no statistics"
        if isinstance(self.engine.network.backbone, PretrainedBackbone):
            norm = TRAINED[self.engine.network.backbone.tune]
        elif self.config.model.norm == "batch":
            norm = "BatchNorm running statistics are averaged with the weights"
        return f"{self.config.train.aggregation} average; {norm}"


def summarise(config: Config, scenario: Scenario, progress: Progress, notes: Sequence[str] = ()) -> Result:
    """Return the result of a finished run: every metric is a function of the confusion tables."""
    traffic = progress.traffic
    return {
        "method": config.method,
        "dataset": config.data.name,
        "seed": config.seed,
        **({"recipe": config.recipe} if config.recipe else {}),
        **over_tasks(progress.tables, scenario.test_rows),
        "numbers": progress.numbers,
        "notes": list(notes),
        "bytes_up": traffic.total("up"),
        "bytes_down": traffic.total("down"),
        "traffic": dict(sorted(traffic.counts.items())),
        "rounds_with_fewer_clients": progress.shortfalls,
        **({"lost_states": progress.lost_states} if progress.lost_states else {}),
        "images_trained": progress.images_trained,
        "images_per_second": progress.images_trained / progress.seconds if progress.seconds else 0.0,
        "seconds": progress.seconds,
        "config": deciding_settings(config),
    }
