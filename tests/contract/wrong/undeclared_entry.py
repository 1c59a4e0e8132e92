"""Wrong: clients send how many images of each class they hold, and the method does not say so."""

from dataclasses import replace

import torch

from fedfeat.api import Buffers, Client, Method, NoSettings, Payload, Statistic, addon


class Histogram(Statistic):
    def finish(self, client: Client, buffers: Buffers) -> Payload:
        labels = client.labels(client.samples)
        return {"told.histogram": torch.bincount(labels, minlength=client.num_classes)}


@addon("told", NoSettings, examples=("replay+told",))
def told(method: Method, settings: NoSettings) -> Method:
    """Tell the server what classes there are."""
    return replace(method, statistics=(*method.statistics, Histogram()))
