"""A federated round as one writes it by hand in plain PyTorch: no flat vectors, no payloads, no events.

Only random numbers come from the toolkit, so that both loops see the same batches; drawing them counts for both.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.settings import TrainSettings
from fedfeat.core.rng import rng_at
from fedfeat.data import Dataset
from fedfeat.data.augment import EpochPlan, plan_epoch
from fedfeat.models.backbones import ResNet, SmallCNN
from timing import Seconds

State = dict[str, Tensor]


class BareLoop:
    """Task 1 of FedAvg over some clients; ``loop()`` is one round."""

    def __init__(
        self,
        dataset: Dataset,
        clients: list[np.ndarray],
        train: TrainSettings,
        seed: int,
        device: torch.device,
    ) -> None:
        self.train, self.seed, self.device = train, seed, device
        self.images = torch.from_numpy(np.array(dataset.train_images)).to(device)
        self.labels = torch.from_numpy(np.array(dataset.train_labels)).to(device)
        self.clients = [torch.from_numpy(np.array(c)).to(device) for c in clients]
        self.augmentation = dataset.augmentation
        mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
        self.scale, self.shift = (1 / (std * 255)).to(device), (-mean / std).to(device)
        height, _, channels = dataset.image_shape
        backbone: SmallCNN | ResNet = SmallCNN(channels) if height <= 16 else ResNet(channels)
        self.model = nn.Sequential(backbone, nn.Linear(backbone.feature_dim, dataset.num_classes)).to(device)
        self.weights: State = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.round = 0

    def start_from(self, named: State) -> None:
        """Take the toolkit's weights, under the names they have here; what earlier rounds returned stays as it is."""
        self.weights = {**self.weights, **{k: v.clone() for k, v in self.rename(named).items()}}

    @staticmethod
    def rename(named: State) -> State:
        """Turn the toolkit's names into those of ``nn.Sequential``."""
        parts = {"backbone": "0", "head": "1"}
        split = ((*name.partition("."), value) for name, value in named.items())
        return {f"{parts[first]}.{rest}": value for first, _, rest, value in split}

    def __call__(self) -> Seconds:
        """Do one round."""
        started = Seconds(time.perf_counter(), time.process_time())
        total: State | None = None
        for client in range(len(self.clients)):
            state = self.train_client(client)
            if total is None:
                total = {k: v.clone() for k, v in state.items()}
            else:
                for name, value in state.items():
                    total[name] += value
        assert total is not None
        for value in total.values():
            if value.is_floating_point():
                value /= len(self.clients)
        self.weights = total
        self.round += 1
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return Seconds(time.perf_counter() - started.wall, time.process_time() - started.cpu)

    def train_client(self, client: int) -> State:
        """Train the global model on one client's samples."""
        s, samples = self.train, self.clients[client]
        self.model.load_state_dict(self.weights)
        self.model.train()
        optimiser = torch.optim.SGD(self.model.parameters(), lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
        for epoch in range(s.local_epochs):
            rng = rng_at(self.seed, "batches", 0, self.round, client, epoch)
            plan = plan_epoch(rng, len(samples), self.augmentation)
            order = samples[plan.order.to(self.device)]
            for start in range(0, len(order), s.batch):
                batch = order[start : start + s.batch]
                loss = F.cross_entropy(self.model(self.augmented(batch, plan, start)), self.labels[batch])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return self.model.state_dict()

    def augmented(self, batch: Tensor, plan: EpochPlan, start: int) -> Tensor:
        """Crop, flip, brighten and normalise a batch of bytes."""
        images, a, here = self.images[batch], self.augmentation, slice(start, start + len(batch))
        if a.crop_padding or a.flip:
            size, p = images.shape[1], a.crop_padding
            padded = F.pad(images, (0, 0, p, p, p, p))
            crops, flips = plan.crops[here].to(self.device), plan.flips[here].to(self.device)
            pixel = torch.arange(size, device=self.device)
            columns = torch.where(flips[:, None], pixel.flip(0), pixel) + crops[:, 1:]
            sample = torch.arange(len(batch), device=self.device)[:, None, None]
            images = padded[sample, (crops[:, :1] + pixel)[:, :, None], columns[:, None, :]]
        pixels = images.float()
        if a.brightness:
            pixels = (pixels * plan.brightness[here].to(self.device)[:, None, None, None]).clamp_(max=255)
        return torch.addcmul(self.shift, pixels, self.scale).permute(0, 3, 1, 2)
