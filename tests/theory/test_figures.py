"""Figures of the theory say the numbers that they were given."""

from __future__ import annotations

import torch

from orthocl.theory.curriculum import Order
from orthocl.theory.figures import bound_figure, order_figure
from orthocl.theory.generalisation import Bound


def test_orders_are_labelled_with_what_they_have_beyond_the_smallest():
    orders = [Order((1, 2), 4.0, "all", exact=True), Order((2, 1), 5.0, "greedy")]
    figure = order_figure(torch.tensor([[1.0, 2.0], [0.0, 3.0], [4.0, 0.0]]), orders)
    words = [text.get_text() for text in figure.axes[1].texts]
    assert words == ["smallest", "+25 %"]
    assert [bar.get_width() for bar in figure.axes[1].patches] == [4.0, 5.0]


def test_bars_of_a_bound_are_its_terms_one_on_the_other():
    bounds = [Bound("sound", task, 2, {"empirical": 0.1 * task, "complexity": 0.2}) for task in (1, 2)]
    axis = bound_figure(bounds, risks=[0.1, 0.2], errors=[0.0, 0.1]).axes[0]
    bars = [(round(bar.get_y(), 6), round(bar.get_height(), 6)) for bar in axis.patches]
    assert bars == [(0.0, 0.1), (0.0, 0.2), (0.1, 0.2), (0.2, 0.2)]
