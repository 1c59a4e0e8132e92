"""Which data set a run learns from, and where data sets and their decoded pixels lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from fedfeat.core.files import expanded
from fedfeat.core.settings import Settings

OWNED = "owned"  # the name of data that clients hold themselves
OTHER_FOLDERS = {"tiny-imagenet": ("tiny-imagenet-subset",)}  # where a data set is searched for besides
Resize = Literal["crop", "pad"]


class DataSettings(Settings):
    """Which images a run learns from, and where they lie."""

    name: str = Field(
        default="digits",
        description="digits, mnist, fashion-mnist, emnist-balanced (-byclass, -bymerge, -letters, -digits, -mnist), "
        "svhn, cifar10, cifar100, tiny-imagenet, or parquet, npz, folder for your own images, domains or "
        "digits-domains for the same classes in several domains, or owned for images that every client of a "
        "federation holds itself",
    )
    path: str | None = Field(
        default=None,
        description="folder, archive or file with the data; ~ and $VARIABLES are expanded; "
        "unset: $FEDFEAT_DATA, then the folder that `fedfeat data get` fills",
    )
    subset_classes: int | None = Field(
        default=None,
        ge=1,
        description="keep this many classes, drawn with the seed; unset: all, of tiny-imagenet always the same 50",
    )
    image_size: int | None = Field(
        default=None, ge=1, description="height and width that all images are brought to; unset: the size they have"
    )
    resize: Resize = Field(
        default="crop",
        description="how images come to a size, also in `fedfeat predict`: crop scales until they cover it and cuts "
        "out the centre, pad scales until they fit in and leaves black around",
    )
    augment: Literal["auto", "none", "crop-flip"] = Field(
        default="auto",
        description="auto: what is usual for the data set (nothing for your own); none; or crop-flip",
    )
    trivial: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="TrivialAugment besides: one random operation on each training image, of at most this strength; "
        "1 is its wide range, 0 is none",
    )
    cutout: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Cutout besides: side of a square that is left out of each training image, as share of the image's",
    )
    validation: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of the training images of every class that is held out, drawn with the seed, and evaluated "
        "on in place of the test images; for choices, so that none is made on test images",
    )
    image_shape: tuple[int, int, int] | None = Field(
        default=None, description="owned: height, width and channels that every client brings its images to"
    )
    mean: tuple[float, ...] | None = Field(
        default=None, description="owned: mean of each channel on the scale 0 to 1; unset: 0.5"
    )
    std: tuple[float, ...] | None = Field(
        default=None, description="owned: standard deviation of each channel; unset: 0.25"
    )
    test_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="owned: share of each class that a client holds back as its own test part; unset: 0.2",
    )

    @model_validator(mode="after")
    def _owned_is_stated(self) -> Self:
        stated = [k for k in ("image_shape", "mean", "std", "test_share") if getattr(self, k) is not None]
        if self.name != OWNED and stated:
            raise ValueError(f"{', '.join(stated)}: only for name = 'owned'; other data sets bring their own")
        if self.name != OWNED:
            return self
        if self.validation is not None:
            raise ValueError("owned: validation has no meaning here; test_share is what clients hold back")
        if self.image_shape is None:
            raise ValueError("owned: state the images' height, width and channels, such as image_shape = [32, 32, 3]")
        if self.subset_classes is not None:
            raise ValueError("owned: subset_classes has no meaning here; scenario.task_names lists the classes")
        if self.image_size is not None:
            raise ValueError("owned: image_size has no meaning here; image_shape states height, width and channels")
        height, width, channels = self.image_shape
        if min(height, width) < 1 or channels not in (1, 3):
            raise ValueError(f"image_shape: expected height, width and 1 or 3 channels, got {list(self.image_shape)}")
        for key in ("mean", "std"):
            values = getattr(self, key)
            if values is not None and len(values) != channels:
                raise ValueError(f"{key}: expected {channels} numbers, one per channel, got {len(values)}")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"std: every number must be above 0, got {list(self.std)}")
        return self

    def location(self) -> Path | None:
        """Return ``path`` with ``~`` and environment variables expanded, or None when it is unset."""
        return expanded(self.path)


def home() -> Path:
    """Return the user's data folder: ``$FEDFEAT_HOME``, or ``~/.cache/fedfeat``."""
    chosen = os.environ.get("FEDFEAT_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedfeat"


def folder_name(name: str) -> str:
    """Return the folder of a named data set; what comes in one archive shares one."""
    return "emnist" if name.startswith("emnist-") else name


def download_folder(name: str) -> Path:
    """Return the folder that ``fedfeat data get`` fills for a data set."""
    return home() / "data" / folder_name(name)


def search_places(name: str) -> list[Path]:
    """Return the folders searched for a named data set, in order."""
    shared = os.environ.get("FEDFEAT_DATA")
    folders = (folder_name(name), *OTHER_FOLDERS.get(name, ()))
    return [*(Path(shared).expanduser() / folder for folder in folders if shared), download_folder(name)]
