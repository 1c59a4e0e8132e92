"""What the images are: named sets, the user's own files, and the cache of decoded pixels."""

from fedfeat.data.dataset import Augmentation, Dataset, Domains, fingerprint, subset
from fedfeat.data.load import DatasetInfo, list_datasets, load_dataset
from fedfeat.data.settings import DataSettings

__all__ = [
    "Augmentation",
    "DataSettings",
    "Dataset",
    "DatasetInfo",
    "Domains",
    "fingerprint",
    "list_datasets",
    "load_dataset",
    "subset",
]
