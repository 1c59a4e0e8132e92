"""EGC written out with projectors, held against the closed form that predictions use; and the choice of cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.geometry import egc_correct, egc_gate, group_energies, simplex_etf
from fedfeat_reproduction.figures.corrected_logits import (
    Margins,
    choose_cases,
    correct_features,
    margins,
    projector,
    subspace_alignment,
)


@given(st.integers(2, 9), st.data(), st.integers(0, 500), st.booleans())
def test_both_forms_give_the_same_directions(classes: int, data: st.DataObject, seed: int, tail_boost: bool) -> None:
    old = data.draw(st.integers(1, classes - 1))
    frame = simplex_etf(classes, 12, seed=seed)
    features = torch.randn(7, 12, generator=torch.Generator().manual_seed(seed))
    cosines = F.normalize(features, dim=1) @ frame
    prior = 0.02
    gate = egc_gate(group_energies(cosines, num_old=old), prior)
    after = correct_features(features, frame, old, gate, tail_boost=tail_boost).after @ frame.double()
    closed = egc_correct(cosines, num_old=old, prior_head=prior, tail_boost=tail_boost).double()
    assert torch.allclose(F.normalize(after, dim=1), F.normalize(closed, dim=1), atol=1e-4)


def test_projector_and_alignment_by_hand() -> None:
    span = torch.tensor([[2.0, 2.0], [0.0, 1.0], [0.0, 0.0]])  # the first two axes
    assert torch.allclose(projector(span), torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.double)))
    vectors = torch.tensor([[3.0, 4.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, -5.0]])
    assert subspace_alignment(vectors, span).tolist() == pytest.approx([1.0, math.sqrt(0.5), 0.0], abs=1e-12)
    assert subspace_alignment(torch.zeros(1, 3), span).isnan().all()


def test_what_is_removed_lies_in_the_head_span_and_no_gate_changes_nothing() -> None:
    frame = simplex_etf(5, 8, seed=0)
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    found = correct_features(features, frame, 3, torch.tensor([0.5, 0.2, 0.9, 0.0]))
    assert torch.allclose(subspace_alignment(found.removed[:3], frame[:, 3:]), torch.ones(3, dtype=torch.double))
    assert torch.equal(found.removed[3], torch.zeros(8, dtype=torch.double))
    assert torch.allclose(found.after[3], found.before[3])
    assert torch.allclose(found.after.norm(dim=1), torch.ones(4, dtype=torch.double))


def test_margins_by_hand() -> None:
    before = torch.tensor([[0.5, 0.2, 0.7], [0.1, 0.6, 0.2]])
    found = margins(before, before.flip(1), torch.tensor([0, 1]))
    assert found.before.tolist() == pytest.approx([-0.2, 0.4])
    assert found.after.tolist() == pytest.approx([0.2, 0.4])


def test_cases_are_the_middle_of_their_kind() -> None:
    before = torch.tensor([-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -2.0, -2.0, -2.0, -9.0])
    after = torch.tensor([0.1, 0.2, 0.3, 0.4, 3.0, 0.5, 2.0, -3.0, -1.0, -1.5, 9.0])
    candidates = torch.arange(10)  # the last image is of a current class: its leap is not looked at
    chosen = choose_cases(Margins(before, after), candidates)
    assert chosen == {"a": 1, "b": 2, "c": 4, "d": 8}


def test_kinds_that_do_not_occur_are_left_out() -> None:
    one = choose_cases(Margins(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, -2.0])), torch.arange(2))
    assert one == {"a": 0, "d": 1}  # a single corrected image fills one panel; a failure may also get worse
    none = choose_cases(Margins(torch.tensor([1.0]), torch.tensor([0.5])), torch.arange(1))
    assert none == {}
