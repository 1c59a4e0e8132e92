"""The pieces of FEAT in a plain PyTorch loop: no federation, no configuration file.

A network learns the digits 0 to 4, then 5 to 9 with only a few images of the first five left. Once it does so with a
linear classifier, and once with the fixed ETF classifier and the GSA loss. EGC then corrects the latter's predictions:
as published, and with a strength that is chosen on a few images that were kept out of training.

    python examples/pieces_in_your_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.api import ETFHead, calibrated, choose, count_right, egc_correct, group_energies, gsa_loss

NUM_OLD, NUM_CLASSES, WIDTH = 5, 10, 64
KEPT, HELD_OUT = 4, 2  # images per class: of old ones to train on later, and of all to choose the strength on
EPOCHS = 24  # per step: enough for the few old images to be fitted as well
STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


Images = tuple[Tensor, Tensor]  # images and labels


def data() -> tuple[Images, Images, Images]:
    """Return images to train on, a few to hold out, and every fourth one for testing."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 4 == 0
    held_out = torch.zeros_like(test)
    for c in range(NUM_CLASSES):
        held_out[((labels == c) & ~test).nonzero()[:HELD_OUT]] = True
    train = ~test & ~held_out
    return (images[train], labels[train]), (images[held_out], labels[held_out]), (images[test], labels[test])


def make_backbone() -> nn.Module:
    """Return two convolutions and a linear layer: images to features, which may be negative."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(WIDTH, WIDTH)),
    )


def train(backbone: nn.Module, head: nn.Module, images: Tensor, labels: Tensor, *, gsa: float, epochs: int) -> None:
    """Train backbone and head; ``gsa`` is the weight of the alignment loss."""
    parameters = [*backbone.parameters(), *head.parameters()]  # an ETF head has none
    optimiser = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    # Without a falling rate the last few steps would decide, and seeds would differ more than methods.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    backbone.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            features = backbone(images[batch])
            loss = F.cross_entropy(head(features), labels[batch])
            if gsa:  # features should lie to each other as the class vectors of their labels do
                loss = loss + gsa * gsa_loss(features, labels[batch], NUM_CLASSES)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    backbone.eval()


def learn_in_two_steps(head: nn.Module, images: Tensor, labels: Tensor, *, gsa: float) -> tuple[nn.Module, Tensor]:
    """Learn old classes, then new ones with a few old images; return the backbone and which images were kept."""
    backbone = make_backbone()
    old = labels < NUM_OLD
    train(backbone, head, images[old], labels[old], gsa=0.0, epochs=EPOCHS)
    kept = torch.cat([(labels == c).nonzero().flatten()[:KEPT] for c in range(NUM_OLD)])
    now = torch.cat([(~old).nonzero().flatten(), kept])
    train(backbone, head, images[now], labels[now], gsa=gsa, epochs=EPOCHS)
    return backbone, kept


def accuracies(logits: Tensor, labels: Tensor) -> tuple[float, float, float]:
    """Return the accuracy on old, on new and on all classes, in percent."""
    right, old = (logits.argmax(dim=1) == labels).float(), labels < NUM_OLD
    return tuple(100 * float(right[rows].mean()) for rows in (old, ~old, old | ~old))  # type: ignore[return-value]


def strength_of(plain: Tensor, corrected: Tensor, labels: Tensor) -> float:
    """Return the strength of EGC that gets most held-out images right."""
    right = count_right(plain, corrected, labels, num_old=NUM_OLD, gammas=STRENGTHS, deltas=(0.0,))
    old = int((labels < NUM_OLD).sum())
    num_new = NUM_CLASSES - NUM_OLD
    totals = (old, len(labels) - old)
    choice = choose(right, totals, num_old=NUM_OLD, num_new=num_new, gammas=STRENGTHS, deltas=(0.0,))
    return choice.gamma if choice else 1.0


def compare(seed: int) -> dict[str, tuple[float, float, float]]:
    """Return accuracies of four ways to classify."""
    torch.manual_seed(seed)
    (images, labels), held_out, test = data()
    linear = nn.Linear(WIDTH, NUM_CLASSES)
    plain, _ = learn_in_two_steps(linear, images, labels, gsa=0.0)

    etf = ETFHead(WIDTH, seed=seed, logits="cosine")
    etf.grow(NUM_CLASSES)  # for all ten at once, so that step one leaves room for step two
    aligned, kept = learn_in_two_steps(etf, images, labels, gsa=0.1)

    with torch.no_grad():
        # How much energy old images have among the new classes: what is above is taken out.
        prior = group_energies(etf.cosine(aligned(images[kept])), num_old=NUM_OLD).head.mean()
        both = []
        for pixels, _ in (held_out, test):
            cosines = etf.cosine(aligned(pixels))
            both.append((cosines, egc_correct(cosines, num_old=NUM_OLD, prior_head=prior)))
        gamma = strength_of(*both[0], held_out[1])
        chosen = calibrated(*both[1], num_old=NUM_OLD, gamma=gamma, delta=0.0)
        return {
            "linear classifier": accuracies(linear(plain(test[0])), test[1]),
            "ETF + GSA": accuracies(both[1][0], test[1]),
            "ETF + GSA + EGC": accuracies(both[1][1], test[1]),
            "the same, chosen": accuracies(chosen, test[1]),
        }


def main() -> None:
    """Print the mean over three seeds."""
    torch.set_num_threads(1)
    runs = [compare(seed) for seed in range(3)]
    print(f"{KEPT} images of each old digit are left; accuracy in percent, mean of three seeds\n")
    print(f"{'':20}{'old 0-4':>10}{'new 5-9':>10}{'all':>10}")
    for name in runs[0]:
        means = [sum(run[name][column] for run in runs) / len(runs) for column in range(3)]
        print(f"{name:20}" + "".join(f"{mean:10.1f}" for mean in means))
    print(
        "\nEGC shifts the balance from new to old classes. Its prior is measured on images that were trained on, so it"
        f"\ncan go too far, as here; the last line lets {HELD_OUT * NUM_CLASSES} held-out images say how far."
    )


if __name__ == "__main__":
    main()
