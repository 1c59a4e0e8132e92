import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError
from fedfeat.methods.class_names import TextSettings, check_text, class_features, encoder_name, text_width
from fedfeat.methods.class_names.features import BUCKETS, ngram_features, ngrams

NAMES = ("pine_tree", "oak_tree", "rocket", "sea", "seal", "0", "crab")
BY_NAME = ("ngrams", "gaussian")
PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


def encode(encoder, names=NAMES, **changes):
    return class_features(TextSettings(encoder=encoder, **changes), names).features


def test_ngrams_of_a_name():
    assert ngrams("a_Bc") == [" a ", "a b", " bc", "bc ", " a b", "a bc", " bc ", " a bc", "a bc "]
    assert ngrams("7") == [" 7 "]
    assert ngrams("") == ["  "]


def test_underscores_and_case_do_not_matter():
    assert torch.equal(encode("ngrams", ("pine_tree",)), encode("ngrams", ("Pine tree",)))


def test_names_that_share_letters_are_closer():
    unit = encode("ngrams")
    cosine = unit @ unit.T
    assert cosine[0, 1] > 0.3  # pine_tree and oak_tree share " tre", "tree", ...
    assert cosine[3, 4] > 0.3  # sea and seal
    assert max(cosine[0, 2], cosine[1, 2], cosine[5, 6]) < 0.2


def test_cosine_is_the_share_of_common_ngrams_up_to_the_projection():
    wide = ngram_features(("pine_tree", "oak_tree"), 4096, 0)
    ours, theirs = ngrams("pine_tree"), ngrams("oak_tree")
    share = len(set(ours) & set(theirs)) / np.sqrt(len(ours) * len(theirs))  # no n-gram comes twice in either
    assert wide[0] @ wide[1] == pytest.approx(share, abs=4 / np.sqrt(4096))
    assert len({*ours, *theirs}) < BUCKETS


@pytest.mark.parametrize("encoder", BY_NAME)
@PROPERTY
@given(order=st.permutations(range(len(NAMES))), size=st.integers(1, len(NAMES)))
def test_a_row_depends_on_its_name_alone(encoder, order, size):
    chosen = order[:size]
    assert torch.equal(encode(encoder, [NAMES[i] for i in chosen]), encode(encoder)[chosen])


@pytest.mark.parametrize("encoder", ["ngrams", "gaussian", "random_orthogonal"])
def test_the_seed_and_the_width_count(encoder):
    assert encode(encoder).shape == (len(NAMES), 512)
    assert encode(encoder, dim=64).shape == (len(NAMES), 64)
    assert encode(encoder).dtype == torch.float32
    assert not torch.equal(encode(encoder), encode(encoder, seed=1))
    assert text_width(TextSettings(encoder=encoder, dim=64)) == 64


@pytest.mark.parametrize("encoder", ["ngrams", "random_orthogonal"])
def test_unit_vectors(encoder):
    torch.testing.assert_close(encode(encoder).norm(dim=1), torch.ones(len(NAMES)))


def test_gaussian_anchors_have_the_scale_and_spacing_of_a_text_tower():
    anchors = encode("gaussian", [f"class {i}" for i in range(100)]).double()
    mean = anchors.mean(dim=0)
    assert mean.norm() == pytest.approx(8.6, abs=0.15)
    assert (anchors - mean).var(dim=0).mean() == pytest.approx(0.04, rel=0.03)
    assert anchors.norm(dim=1).mean() == pytest.approx(9.67, abs=0.15)  # measured on CLIP's features of CIFAR-100
    unit = torch.nn.functional.normalize(anchors)
    off = (unit @ unit.T)[~torch.eye(100, dtype=torch.bool)]
    assert off.mean() == pytest.approx(0.78, abs=0.02)


def test_random_orthogonal_rows_are_orthogonal_and_old_ones_stay():
    rows = encode("random_orthogonal")
    torch.testing.assert_close(rows @ rows.T, torch.eye(len(NAMES)), atol=1e-6, rtol=0)
    torch.testing.assert_close(encode("random_orthogonal", NAMES[:3]), rows[:3], atol=1e-6, rtol=0)
    with pytest.raises(ConfigError, match="7 classes cannot be orthogonal in 5 dimensions"):
        encode("random_orthogonal", dim=5)


def digests() -> list[str]:
    made = (encode(encoder).numpy() for encoder in ("ngrams", "gaussian"))
    return [hashlib.sha256(features.tobytes()).hexdigest() for features in made]


@pytest.mark.processes
def test_another_process_gets_the_same_bytes():
    folders = Path(__file__).parents[3] / "src", Path(__file__).parent
    other = subprocess.run(
        [sys.executable, "-c", "from test_text_encoders import digests; print(digests())"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == str(digests())


def test_features_are_made_once_and_named():
    first = class_features(TextSettings(), NAMES)
    assert class_features(TextSettings(), list(NAMES)).features is first.features
    assert first.encoder == "ngrams-512" == encoder_name(TextSettings())
    with pytest.raises(ConfigError, match="no class name to encode"):
        class_features(TextSettings(), ())


def test_a_prompt_must_name_the_class():
    with pytest.raises(ConfigError, match=r"fedfsa.text.prompt: a prompt must say where the class name goes"):
        make_config({"method": "fedcbdr+fedfsa", "fedfsa": {"text": {"prompt": "a photo"}}})
    assert TextSettings().prompts(("aquarium_fish",)) == ["a photo of a aquarium fish"]


@pytest.mark.parametrize("encoder", ["open_clip", "transformers", "sentence-transformers"])
def test_a_local_model_must_be_there(encoder, tmp_path):
    with pytest.raises(ConfigError, match="needs a local model and no path is set"):
        check_text(TextSettings(encoder=encoder))
    with pytest.raises(ConfigError, match="does not exist"):
        check_text(TextSettings(encoder=encoder, path=str(tmp_path / "none")))
