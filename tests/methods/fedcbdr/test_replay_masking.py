import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.methods.fedcbdr.leverage import RowMask, random_orthogonal, row_mask, shared_rotation

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def eye(rows):
    return torch.eye(rows, dtype=torch.float64)


def mask(rows, block=1024, seed=0):
    return RowMask(rows, np.random.default_rng(seed), block=block)


@pytest.mark.parametrize("size", [1, 2, 17])
def test_rotations_are_orthogonal(size):
    q = random_orthogonal(size, np.random.default_rng(0))
    assert np.allclose(q @ q.T, eye(size), atol=1e-12)


def test_rotations_of_one_dimension_take_both_signs():
    signs = {float(random_orthogonal(1, np.random.default_rng(s))[0, 0]) for s in range(20)}
    assert signs == {1.0, -1.0}


@PROPERTY
@given(rows=st.integers(0, 40), block=st.integers(1, 50), seed=st.integers(0, 99))
def test_undo_takes_the_mask_off(rows, block, seed):
    x = torch.from_numpy(np.random.default_rng(seed + 1).standard_normal((rows, 3)))
    hidden = mask(rows, block, seed)
    assert np.allclose(hidden.undo(hidden.apply(x)), x, atol=1e-10)
    assert np.allclose(hidden.apply(hidden.undo(x)), x, atol=1e-10)


@PROPERTY
@given(rows=st.integers(1, 30), block=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_mask_is_an_orthogonal_matrix(rows, block, seed):
    p = mask(rows, block, seed).apply(eye(rows))
    assert np.allclose(p @ p.T, eye(rows), atol=1e-10)
    assert np.allclose(mask(rows, block, seed).undo(eye(rows)), p.T, atol=1e-10)


@pytest.mark.parametrize(("rows", "block", "sizes"), [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 1024, [3])])
def test_blocks_cover_all_rows_and_each_mixes_its_own(rows, block, sizes):
    hidden = mask(rows, block)
    assert [b - a for a, b, _ in hidden.blocks] == sizes
    p = hidden.apply(eye(rows))
    assert [int((row.abs() > 1e-12).sum()) for row in p] == [s for s in sizes for _ in range(s)]


def test_samples_are_permuted_before_blocks_are_rotated():
    p = mask(40, block=4).apply(eye(40))
    first_block = np.flatnonzero(p[:4].abs().sum(dim=0) > 1e-12)
    assert first_block.tolist() != [0, 1, 2, 3]


def test_no_masked_row_is_a_sample():
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((30, 5)))
    hidden = mask(30).apply(x)
    assert (hidden[:, None] - x[None]).abs().amax(dim=2).min() > 0.05


def test_every_client_and_every_task_has_a_mask_of_its_own():
    x = eye(6)
    one = row_mask(1, 0, 0, 6, block=1024).apply(x)
    row_mask.cache_clear()
    assert np.array_equal(one, row_mask(1, 0, 0, 6, block=1024).apply(x))
    others = [row_mask(*where, 6, block=1024).apply(x) for where in [(1, 0, 1), (1, 1, 0), (2, 0, 0)]]
    assert all(not np.allclose(one, other) for other in others)


def test_the_rotation_of_features_is_shared_by_clients_and_changes_with_the_task():
    q = shared_rotation(1, 0, 7)
    shared_rotation.cache_clear()
    assert np.allclose(q @ q.T, eye(7), atol=1e-12)
    assert np.array_equal(q, shared_rotation(1, 0, 7))
    assert not np.allclose(q, shared_rotation(1, 1, 7))
