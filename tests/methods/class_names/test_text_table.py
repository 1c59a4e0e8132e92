import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fedfeat.core.errors import ConfigError
from fedfeat.data.cifar import CIFAR10_CLASSES
from fedfeat.methods.class_names import TextSettings, class_features, encoder_name, text_width

ROWS = np.arange(12, dtype=np.float16).reshape(4, 3)
NAMES = ["cat", "dog", "pine_tree", "sea"]


def settings(path, **changes):
    return TextSettings(encoder="table", path=str(path), **changes)


@pytest.fixture
def table(tmp_path):
    np.save(tmp_path / "table.npy", ROWS)
    return tmp_path / "table.npy"


def test_rows_by_the_names_beside_the_table(table):
    table.with_suffix(".json").write_text(json.dumps(NAMES))
    found = class_features(settings(table), ["sea", "pine tree", "cat"])
    assert found.features.tolist() == [[9, 10, 11], [6, 7, 8], [0, 1, 2]]
    assert found.features.dtype == torch.float32
    assert found.encoder == encoder_name(settings(table))
    assert found.encoder.startswith("table-table.npy-")
    assert text_width(settings(table)) == 3


def test_rows_by_a_file_of_names_by_known_names_and_by_arrival(table, tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES) + "\n\n")
    assert class_features(settings(table, names=str(tmp_path / "names.txt")), ["dog"]).features.tolist() == [[3, 4, 5]]
    assert class_features(settings(table, names="arrival"), ["x", "y"]).features.tolist() == ROWS[:2].tolist()
    np.save(tmp_path / "ten.npy", np.eye(10))
    found = class_features(settings(tmp_path / "ten.npy", names="cifar10"), CIFAR10_CLASSES[::-1]).features
    assert torch.equal(found, torch.eye(10).flip(0))


def test_safetensors_with_names_in_the_metadata(tmp_path):
    path = tmp_path / "table.safetensors"
    save_file({"features": ROWS.astype(np.float32)}, path, {"names": json.dumps(NAMES)})
    assert class_features(settings(path), ["dog"]).features.tolist() == [[3, 4, 5]]


def test_safetensors_with_a_vector_per_class(tmp_path):
    path = tmp_path / "table.safetensors"
    save_file({name: row.astype(np.float32) for name, row in zip(NAMES, ROWS, strict=True)}, path)
    assert class_features(settings(path), ["sea", "cat"]).features.tolist() == [[9, 10, 11], [0, 1, 2]]


@pytest.mark.parametrize(
    ("rows", "names", "words"),
    [
        (ROWS, None, "does not say which class a row belongs to"),
        (ROWS, NAMES[:3], "4 rows and 3 class names"),
        (ROWS, ["a", "b", "c", "d"], r"no row for the class 'dog' \(1 of 1 are missing\)"),
        (ROWS, {"cat": 0}, "should be a list of class names"),
        (ROWS[0], NAMES, "a row per class, got float16 3"),
        (ROWS.astype(np.int64), NAMES, "real numbers"),
        (np.full((4, 3), np.nan), NAMES, "not finite"),
    ],
)
def test_a_wrong_table_is_one_sentence(rows, names, words, tmp_path):
    np.save(tmp_path / "table.npy", rows)
    if names is not None:
        (tmp_path / "table.json").write_text(json.dumps(names))
    with pytest.raises(ConfigError, match=words):
        class_features(settings(tmp_path / "table.npy"), ["dog"])


def test_a_file_that_is_no_table(tmp_path):
    for name, content in (("a.npy", b"no"), ("b.safetensors", b"no"), ("c.pt", b"no")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=r"text.path: .*(cannot be read|expected a .npy)"):
            class_features(settings(tmp_path / name), ["dog"])
    with pytest.raises(ConfigError, match="is not a file"):
        class_features(settings(tmp_path / "missing.npy"), ["dog"])
    with pytest.raises(ConfigError, match="set path"):
        class_features(TextSettings(encoder="table"), ["dog"])
    np.save(tmp_path / "few.npy", ROWS[:1])
    with pytest.raises(ConfigError, match="1 rows for 2 classes"):
        class_features(settings(tmp_path / "few.npy", names="arrival"), ["a", "b"])


def test_pickled_arrays_are_not_read(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        class_features(settings(tmp_path / "bad.npy"), ["dog"])
