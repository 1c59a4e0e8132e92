"""What the pictures of FEAT's components show: for eyes that do not see them, and below them."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

FOLDER = "images/components"


class Caption(NamedTuple):
    """A picture in words, and what it means."""

    shows: str
    means: str


CAPTIONS = {
    "etf": Caption(
        "Two spheres with three prototypes 120 degrees apart: the features of three digits are scattered after one "
        "epoch and lie around the prototype of their class after twelve",
        "Three classes in three dimensions. The prototypes (arrows) never move; training moves the features of test "
        "images (points, pale on the far side) to them. Each point is a feature divided by its length.",
    ),
    "gsa": Caption(
        "Cosines between the features of 60 test images of ten digits: without GSA most classes look alike, with it "
        "few do; the target is 1 inside a class and -1/9 between classes",
        "Cosines between the features of test images, six of each digit, after training with an ETF classifier alone "
        "and with GSA (weight 0.1). GSA brings the cosines closer to the target: 1 inside a class, -1/9 between any "
        "two of ten.",
    ),
    "egc": Caption(
        "A test image of a 4, an old digit; its energy in the span of the new digits is above the prior; its largest "
        "cosine is that of the new digit 6 before the correction and that of 4 after it",
        "One test image. Its energy among the new digits is higher than the prior, which is what old images show. The "
        "excess (hatched) sets the gate, and the gate shrinks the part along new prototypes and stretches the part "
        "along old ones: 6 before (outlined), 4 after (filled).",
    ),
}


def picture(name: str, to_docs: str = "") -> str:
    """Return the Markdown of a component's picture, in a page from which ``to_docs`` leads to the docs."""
    shows, means = CAPTIONS[name]
    return f"![{shows}]({to_docs}{FOLDER}/{name}.png)\n\n{textwrap.fill(means, 120)}"
