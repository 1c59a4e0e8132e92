"""Networks: backbones, heads that grow, and the flat vector that holds a model's numbers."""

from fedfeat.models.build import HeadFactory, ModelSettings, build_network
from fedfeat.models.heads import ETFHead, Head, LinearHead
from fedfeat.models.network import FlatModel, Network, Outputs, as_vector
from fedfeat.models.pretrained import PixelScale, PretrainedBackbone

__all__ = [
    "ETFHead",
    "FlatModel",
    "Head",
    "HeadFactory",
    "LinearHead",
    "ModelSettings",
    "Network",
    "Outputs",
    "PixelScale",
    "PretrainedBackbone",
    "as_vector",
    "build_network",
]
