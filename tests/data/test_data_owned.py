"""A client's own images: read by class name from folders and parquet, fitted, with a test part of their own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedfeat.config.config import load_config, make_config
from fedfeat.core.errors import ConfigError, DataError
from fedfeat.data import DataSettings, load_dataset
from fedfeat.data.dataset import fingerprint
from fedfeat.data.owned import class_digests, held_classes, hold_back, metadata_only, read_own
from fedfeat.scenario.build import named_classes, named_scenario

NAMES = ("cat", "dog", "ship")
GREY = DataSettings(name="owned", image_shape=(8, 8, 1))


def picture(value: int, size: tuple[int, int] = (8, 8), mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value, 0, 255 - value)).save(file, "PNG")
    return file.getvalue()


def write_class(folder: Path, values: range, **options: Any) -> None:
    folder.mkdir(parents=True)
    for value in values:
        (folder / f"{value:03d}.png").write_bytes(picture(value, **options))


def write_parquet(path: Path, rows: list[tuple[int, int]], names: tuple[str, ...]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": [{"bytes": picture(v), "path": ""} for _, v in rows], "label": [c for c, _ in rows]})
    metadata = {"info": {"features": {"label": {"names": list(names)}}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(metadata)}), path)
    return path


def values(images: np.ndarray) -> list[int]:
    return [int(v) for v in images[:, 0, 0, 0]]


@given(st.integers(0, 60), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_every_image_is_either_trained_or_tested_on(count: int, share: float, seed: int) -> None:
    files = [(str(n), bytes) for n in range(count)]
    train, test = hold_back(files, share, np.random.default_rng(seed))
    assert sorted([*train, *test], key=lambda f: int(f[0])) == files
    assert [int(f[0]) for f in train] == sorted(int(f[0]) for f in train)
    if count > 1:
        assert 1 <= len(test) < count
        assert abs(len(test) - share * count) <= 1
    else:
        assert not test


def test_a_folder_is_read_by_class_name_in_order_of_arrival(tmp_path: Path) -> None:
    write_class(tmp_path / "ship", range(100, 110))
    write_class(tmp_path / "cat", range(0, 20))
    data = read_own(tmp_path, GREY, NAMES, seed=3)
    assert data.class_names == NAMES
    assert data.train_labels.tolist() == [0] * 16 + [2] * 8
    assert data.test_labels.tolist() == [0] * 4 + [2] * 2
    assert sorted(values(data.train_images) + values(data.test_images)) == [*range(20), *range(100, 110)]
    assert held_classes(data) == ["cat", "ship"]
    assert (data.mean, data.std) == ((0.5,), (0.25,))
    other = read_own(tmp_path, GREY, NAMES, seed=4)
    assert values(other.test_images) != values(data.test_images)


def test_a_split_that_is_there_is_kept(tmp_path: Path) -> None:
    write_class(tmp_path / "train" / "cat", range(0, 5))
    write_class(tmp_path / "test" / "cat", range(50, 53))
    data = read_own(tmp_path, GREY, NAMES, seed=3)
    assert values(data.train_images) == [0, 1, 2, 3, 4]
    assert values(data.test_images) == [50, 51, 52]


def test_one_parquet_file_and_shards(tmp_path: Path) -> None:
    rows = [(1, v) for v in range(10)] + [(0, 100 + v) for v in range(5)]
    file = write_parquet(tmp_path / "mine.parquet", rows, ("dog", "cat"))
    data = read_own(file, GREY, NAMES, seed=3)
    assert data.train_labels.tolist() == [0] * 8 + [1] * 4
    assert max(values(data.train_images)[:8]) < 10
    write_parquet(tmp_path / "shards" / "train.parquet", rows, ("dog", "cat"))
    write_parquet(tmp_path / "shards" / "test.parquet", [(0, 77)], ("dog", "cat"))
    shards = read_own(tmp_path / "shards", GREY, NAMES, seed=3)
    assert (len(shards.train_labels), shards.test_labels.tolist(), values(shards.test_images)) == (15, [1], [77])


def test_an_owner_of_few_images_may_hold_high_numbers_only(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": [{"bytes": picture(v)} for v in range(3)], "label": [7, 7, 9]})
    pq.write_table(table, tmp_path / "mine.parquet")
    data = read_own(tmp_path / "mine.parquet", GREY, ("7", "8", "9"), seed=3)
    assert held_classes(data) == ["7", "9"]


def test_images_are_brought_to_the_stated_shape(tmp_path: Path) -> None:
    write_class(tmp_path / "cat", range(40, 44), size=(30, 20), mode="RGB")
    grey = read_own(tmp_path, GREY, NAMES, seed=3)
    assert grey.train_images.shape == (3, 8, 8, 1)
    colour = DataSettings(name="owned", image_shape=(6, 4, 3), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0))
    data = read_own(tmp_path, colour, NAMES, seed=3)
    assert data.train_images.shape == (3, 6, 4, 3)
    assert set(values(data.train_images)) <= {40, 41, 42, 43}
    assert (data.mean, data.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))


def test_a_client_may_hold_nothing(tmp_path: Path) -> None:
    write_class(tmp_path / "zebra", range(3))
    data = read_own(tmp_path, GREY, NAMES, seed=3)
    assert (len(data.train_images), len(data.test_images), held_classes(data)) == (0, 0, [])
    assert fingerprint(data) == fingerprint(metadata_only(GREY, NAMES))


def test_the_fingerprint_tells_nothing_but_shape_and_names(tmp_path: Path) -> None:
    write_class(tmp_path / "cat", range(9))
    data = read_own(tmp_path, GREY, NAMES, seed=3)
    assert fingerprint(data) == fingerprint(metadata_only(GREY, NAMES))
    assert fingerprint(data) != fingerprint(metadata_only(GREY, NAMES[:2]))
    larger = GREY.model_copy(update={"image_shape": (9, 8, 1)})
    assert fingerprint(data) != fingerprint(metadata_only(larger, NAMES))


def test_digests_change_with_their_class_alone(tmp_path: Path) -> None:
    write_class(tmp_path / "cat", range(9))
    write_class(tmp_path / "dog", range(20, 25))
    before = class_digests(read_own(tmp_path, GREY, NAMES, seed=3))
    (tmp_path / "dog" / "extra.png").write_bytes(picture(99))
    after = class_digests(read_own(tmp_path, GREY, NAMES, seed=3))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.parametrize(
    ("path", "message"), [(None, "say where they lie with --data"), (Path("nowhere"), "nowhere: expected a folder")]
)
def test_no_images_to_read(path: Path | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_own(path, GREY, NAMES, seed=3)


def test_a_data_set_for_one_machine_is_not_owned() -> None:
    with pytest.raises(DataError, match="every client brings its own images"):
        load_dataset(GREY)


OWNED: dict[str, Any] = {"name": "owned", "image_shape": [8, 8, 1]}
NAMED: dict[str, Any] = {"task_names": [["cat", "dog"], ["ship"]], "clients": 2}


@pytest.mark.parametrize(
    ("data", "scenario", "message"),
    [
        ({"name": "owned"}, NAMED, "state the images' height, width and channels"),
        (OWNED, {}, "data.name = 'owned' and scenario.task_names go together"),
        ({}, NAMED, "data.name = 'owned' and scenario.task_names go together"),
        ({"mean": [0.5]}, {}, "mean: only for name = 'owned'"),
        ({**OWNED, "image_shape": [8, 8, 4]}, NAMED, "1 or 3 channels, got [8, 8, 4]"),
        ({**OWNED, "std": [1, 1]}, NAMED, "std: expected 1 numbers, one per channel, got 2"),
        ({**OWNED, "std": [0.0]}, NAMED, "std: every number must be above 0"),
        ({**OWNED, "subset_classes": 2}, NAMED, "subset_classes has no meaning here"),
        (OWNED, {**NAMED, "tasks": 3}, "task_names lists 2 tasks but tasks is 3; leave tasks out"),
        (OWNED, {**NAMED, "task_names": [["cat"], ["cat"]]}, "task_names names 'cat' twice"),
        (OWNED, {**NAMED, "task_names": [["cat"], []]}, "a task without a class"),
    ],
)
def test_configurations_that_cannot_be_meant(data: dict[str, Any], scenario: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_config({"data": data, "scenario": scenario})
    assert message in str(raised.value)


def test_tasks_as_names() -> None:
    config = make_config({"data": OWNED, "scenario": {**NAMED, "budget": 9, "joins": {"1": 2}}})
    assert config.scenario.tasks == 2
    assert make_config(config.to_table()).to_table() == config.to_table()
    assert named_classes(config.scenario) == NAMES
    server = named_scenario(config.scenario, seed=1)
    assert server.task_classes == (range(0, 2), range(2, 3))
    assert [len(server.samples(t, k)) for t in (0, 1) for k in (0, 1)] == [0, 0, 0, 0]
    assert [p.tolist() for p in server.present_clients] == [[0], [0, 1]]
    assert server.quotas(1).tolist() == [5, 4]
    owner = named_scenario(config.scenario, 1, [0, 0, 1, 2, 2])
    assert [owner.samples(t, 1).tolist() for t in (0, 1)] == [[0, 1, 2], [3, 4]]
    assert owner.splits[0].sizes.tolist() == [3, 3]
    assert "samples" not in server.to_json(NAMES)["tasks"][0]


def test_the_example_configuration_is_one() -> None:
    config = load_config(Path(__file__).parents[2] / "configs" / "owned.toml")
    assert named_classes(config.scenario) == ("cat", "dog", "ship", "truck")
    assert config.data.image_shape == (32, 32, 3)
