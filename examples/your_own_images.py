"""Your own images, from folders of files to a model that names what is in a picture.

Give a folder with one sub-folder per class (images of one size); without one, a small folder of drawn shapes is made.

    python examples/your_own_images.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fedfeat.api import find_images, fit_image, load_trained, make_config, start

SHAPES = ("circle", "cross", "frame", "stripes", "square", "triangle")
SIZE, PER_CLASS = 16, 60


def draw(shape: str, rng: np.random.Generator) -> Image.Image:
    """Draw one shape in a random colour, place and size, with noise."""
    image = Image.new("RGB", (SIZE, SIZE), tuple(rng.integers(0, 80, 3).tolist()))
    pen, colour = ImageDraw.Draw(image), tuple(rng.integers(140, 256, 3).tolist())
    size = int(rng.integers(8, 12))
    x, y = (int(v) for v in rng.integers(1, SIZE - size - 1, 2))
    box = (x, y, x + size, y + size)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    elif shape == "frame":
        pen.rectangle(box, outline=colour, width=2)
    elif shape == "triangle":
        pen.polygon([(x, y + size), (x + size // 2, y), (x + size, y + size)], fill=colour)
    elif shape == "cross":
        pen.line(box, fill=colour, width=2)
        pen.line((x, y + size, x + size, y), fill=colour, width=2)
    else:
        for row in range(y, y + size, 4):
            pen.line((x, row, x + size, row), fill=colour, width=2)
    noisy = np.asarray(image) + rng.normal(0, 12, (SIZE, SIZE, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def make_folder(root: Path) -> None:
    """Write FOLDER/CLASS/NUMBER.png."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        (root / shape).mkdir(parents=True)
        for number in range(PER_CLASS):
            draw(shape, rng).save(root / shape / f"{number:03d}.png")


def main() -> None:
    """Train on the folder in a federation of three clients, then look at single pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch) / "shapes"
        if len(sys.argv) == 1:
            make_folder(images)
        config = make_config(
            {
                "method": "herding+feat",
                "data": {"name": "folder", "path": str(images)},  # every 5th image of a class becomes a test image
                "scenario": {"tasks": 2, "clients": 3, "budget": 24},
                "model": {"name": "small-cnn"},
                "train": {"rounds": 12, "batch": 16, "lr": 0.05},
                "engine": {"device": "cpu", "threads": 1},
                "feat": {"logits": "cosine"},
            }
        )
        run = Path(scratch) / "run"
        result = start(config, run)
        for task, accuracy in enumerate(result["accuracy_after_task"], 1):
            print(f"after task {task}: {accuracy:.1f} % of the test images of all classes so far are right")

        model = load_trained(run)
        print(f"\nclasses in the order of their arrival: {', '.join(model.class_names)}")
        shown = [next(find_images([images / name])) for name in model.class_names]
        predicted = model.predict(np.stack([fit_image(path, model.image_shape, model.resize) for path in shown]))
        for path, label, probabilities in zip(shown, predicted.labels, predicted.probabilities, strict=True):
            print(f"{path.parent.name}/{path.name}: {model.class_names[label]} ({100 * probabilities[label]:.0f} %)")


if __name__ == "__main__":
    main()
