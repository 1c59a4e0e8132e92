import sys

import numpy as np
import pytest
import torch

from fedfeat.methods.data_free.synthesis import class_grid, write_picture


def test_a_row_per_class_with_the_newest_images():
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 24, 24, 1) * 10
    grid = class_grid(images, torch.tensor([0, 1, 0, 0, 2, 0]), 3, columns=2)
    cell = 48 + 2
    assert grid.shape == (3 * cell + 2, 2 * cell + 2, 1)

    def at(row, column):
        return int(grid[row * cell + 2, column * cell + 2, 0]), int(grid[row * cell + 49, column * cell + 49, 0])

    assert at(0, 0) == (30, 30)
    assert at(0, 1) == (50, 50)
    assert at(1, 0) == (10, 10)
    assert at(1, 1) == (255, 255)
    assert at(2, 0) == (40, 40)


def test_large_images_are_not_enlarged_and_colours_are_kept():
    grid = class_grid(torch.zeros(1, 64, 70, 3, dtype=torch.uint8), torch.tensor([0]), 1, columns=1)
    assert grid.shape == (68, 74, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_written_whole(tmp_path, channels):
    image = pytest.importorskip("PIL.Image")
    grid = np.arange(20 * 30 * channels, dtype=np.uint8).reshape(20, 30, channels)
    write_picture(tmp_path / "pictures" / "task-1.png", grid)
    with image.open(tmp_path / "pictures" / "task-1.png") as read:
        assert np.array_equal(np.asarray(read).reshape(grid.shape), grid)
    assert [p.name for p in (tmp_path / "pictures").iterdir()] == ["task-1.png"]


def test_without_pillow_the_run_goes_on_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.warns(UserWarning, match=r"task-1\.png: not written; writing pictures needs .*fedfeat\[images\]"):
        write_picture(tmp_path / "task-1.png", np.zeros((2, 2, 1), dtype=np.uint8))
    assert not (tmp_path / "task-1.png").exists()
