import numpy as np

from shoal.adapters.hvd.adasum import combined


def test_orthogonal_gradients_are_added() -> None:
    assert combined([np.array([1.0, 0.0]), np.array([0.0, 3.0])]).tolist() == [1.0, 3.0]


def test_equal_gradients_count_once() -> None:
    assert combined([np.array([2.0, 4.0])] * 4).tolist() == [2.0, 4.0]


def test_a_gradient_of_zeros_changes_nothing() -> None:
    assert combined([np.zeros(2), np.array([1.0, 2.0])]).tolist() == [1.0, 2.0]


def test_two_are_combined_as_the_paper_says() -> None:
    a, b = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    expected = (1 - 5 / (2 * 5)) * a + (1 - 5 / (2 * 10)) * b
    np.testing.assert_allclose(combined([a, b]), expected)
    np.testing.assert_allclose(combined([b, a]), expected)
