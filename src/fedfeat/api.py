"""All that the author of a method, or a caller from Python, needs: one import.

A method is a function that returns a :class:`Method`, registered with :func:`base` or :func:`addon`. An experiment is
a configuration that :func:`start` takes to its end. FEAT's pieces stand alone: :class:`ETFHead`, :func:`gsa_loss`,
:func:`egc_correct`.

Names in ``__all__`` stay; modules behind them may move.
"""

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import cross_entropy, new_class_cross_entropy, soft_cross_entropy
from fedfeat.algorithm.method import (
    Buffers,
    Capturable,
    Method,
    Op,
    Penalty,
    PenaltyGradient,
    Prediction,
    Reference,
    ReferenceFunction,
    ServerStep,
    Statistic,
    TaskEndStep,
)
from fedfeat.algorithm.registry import NoSettings, addon, all_methods, base, compose
from fedfeat.algorithm.sent import Sent
from fedfeat.algorithm.server import Server
from fedfeat.algorithm.step import Known, LossTerm, Seen, Step
from fedfeat.algorithm.task_end import Exchange, TaskEnd
from fedfeat.config.config import Config, load_config, make_config
from fedfeat.core.errors import CheckpointError, ConfigError, DataError, FedfeatError, MissingExtra
from fedfeat.core.payload import Payload, State, number_of, tensor_of
from fedfeat.core.rng import int_at, rng_at
from fedfeat.core.settings import Settings, setting
from fedfeat.data import Augmentation, Dataset, load_dataset
from fedfeat.data.images import find_images, fit_image
from fedfeat.geometry import Energies, egc_correct, egc_gate, etf_cosine, group_energies, gsa_loss, simplex_etf
from fedfeat.geometry.calibration import Choice, calibrated, choose, count_right, sum_losses
from fedfeat.methods.replay import even_shares, herd
from fedfeat.models import ETFHead, Head, LinearHead, Network, Outputs
from fedfeat.runs.experiment import resume, start
from fedfeat.runs.export import export_model
from fedfeat.runs.sweep import finish
from fedfeat.runs.trained import Predicted, Trained, load_trained
from fedfeat.scenario import Scenario, ScenarioSettings, build_scenario

__all__ = [  # noqa: RUF022  (in the order in which one needs them)
    # A method, its name and its settings.
    "Method",
    "base",
    "addon",
    "compose",
    "all_methods",
    "Settings",
    "setting",
    "NoSettings",
    # Its parts; inherit and override what is needed, the rest does nothing.
    "LossTerm",
    "Reference",
    "Penalty",
    "Statistic",
    "ServerStep",
    "TaskEndStep",
    "Prediction",
    "Capturable",
    # What parts see: a training step, a client, the server, the end of a task.
    "Step",
    "Client",
    "Server",
    "TaskEnd",
    "Exchange",
    "Seen",
    "Known",
    # What crosses between server and client and how it is declared, and what a client keeps.
    "Sent",
    "Payload",
    "State",
    "tensor_of",
    "number_of",
    # Types of functions and buffers that parts return.
    "Op",
    "ReferenceFunction",
    "PenaltyGradient",
    "Buffers",
    # Random numbers: a function of seed, purpose and place.
    "rng_at",
    "int_at",
    # Losses and rules that choose exemplars, as functions of tensors.
    "cross_entropy",
    "new_class_cross_entropy",
    "soft_cross_entropy",
    "herd",
    "even_shares",
    # Networks.
    "Network",
    "Outputs",
    "Head",
    "LinearHead",
    "ETFHead",
    # FEAT's mathematics: the ETF, its alignment loss, the correction and its calibration.
    "simplex_etf",
    "etf_cosine",
    "gsa_loss",
    "Energies",
    "group_energies",
    "egc_gate",
    "egc_correct",
    "Choice",
    "count_right",
    "sum_losses",
    "choose",
    "calibrated",
    # Data and who sees what.
    "Dataset",
    "Augmentation",
    "load_dataset",
    "Scenario",
    "ScenarioSettings",
    "build_scenario",
    # An experiment: configure, run, continue; ``finish`` does whichever is left to do.
    "Config",
    "load_config",
    "make_config",
    "start",
    "resume",
    "finish",
    # A trained model.
    "load_trained",
    "Trained",
    "Predicted",
    "find_images",
    "fit_image",
    "export_model",
    # Errors that a user can act on.
    "FedfeatError",
    "ConfigError",
    "DataError",
    "CheckpointError",
    "MissingExtra",
]
