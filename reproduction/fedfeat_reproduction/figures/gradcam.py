"""Grad-CAM (Selvaraju et al., ICCV 2017): where in an image the evidence for a class comes from."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.models import Network
from fedfeat.models.backbones import pool


def grad_cam(maps: Tensor, gradients: Tensor) -> Tensor:
    """Return ``relu(sum_k a_k A_k)`` per image, [B, H, W]: each map ``A_k`` counts by its mean gradient ``a_k``.

    :param maps: [B, K, H, W], activations of one layer.
    :param gradients: of each image's class score by those activations, the same shape.
    """
    weights = gradients.mean(dim=(2, 3), keepdim=True)
    return F.relu((weights * maps).sum(dim=1))


def attention(network: Network, images: Tensor, classes: Tensor) -> Tensor:
    """Return Grad-CAM of each image for its class, from the last feature maps, stretched to the image's size."""
    maps = last_maps(network, images).requires_grad_()
    with torch.enable_grad():
        logits = network.head(network.head.feature(pool(maps)))
        (gradients,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), maps)
    cam = grad_cam(maps.detach(), gradients)
    return F.interpolate(cam[:, None], images.shape[2:], mode="bilinear", align_corners=False).squeeze(1)


@torch.no_grad()
def last_maps(network: Network, images: Tensor) -> Tensor:
    """Return the feature maps whose average over all places is the feature, [B, K, H, W]."""
    with network.reduced_precision(images):
        return network.backbone.maps(images).float()


def spread(maps: Tensor) -> Tensor:
    """Return the share of the image that attention fills, in (0, 1]: the exponential of its entropy over all places.

    One for attention that is everywhere the same, ``1 / (H W)`` for a single place; nan where there is none at all.
    """
    shares = maps.flatten(1).double()
    shares = shares / shares.sum(dim=1, keepdim=True)
    entropy: Tensor = torch.special.entr(shares).sum(dim=1)
    return entropy.exp() / math.prod(maps.shape[1:])


def on_object(maps: Tensor, objects: Tensor) -> Tensor:
    """Return the share of attention that falls on the object, given as a mask of each image; nan without attention."""
    flat = maps.flatten(1).double()
    return (flat * objects.flatten(1)).sum(dim=1) / flat.sum(dim=1)
