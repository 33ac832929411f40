import itertools
import math
import sys

import numpy as np
import pytest

from jaxmrf.diagnostics import (
    co_clustering,
    num_groups,
    representative_grouping,
    to_arviz,
    variation_of_information,
    variation_of_information_difference,
)


def brute_force_variation(a, b):
    """-sum over pairs of groups of p(A, B) [log p(A, B) / p(A) + log p(A, B) / p(B)]."""
    total, num_items = 0.0, len(a)
    for group_a, group_b in itertools.product(set(a), set(b)):
        inside_a = {i for i in range(num_items) if a[i] == group_a}
        inside_b = {i for i in range(num_items) if b[i] == group_b}
        both = len(inside_a & inside_b)
        if both:
            ratio = math.log(both / len(inside_a)) + math.log(both / len(inside_b))
            total -= both / num_items * ratio
    return total


def random_groupings(rng, count):
    return [rng.integers(5, size=12).tolist() for _ in range(count)]


def test_variation_of_information_equals_brute_force(rng):
    groupings = random_groupings(rng, 8)
    for a, b in itertools.combinations(groupings, 2):
        assert variation_of_information(a, b) == pytest.approx(brute_force_variation(a, b))


def test_variation_of_information_is_a_distance(rng):
    groupings = random_groupings(rng, 6)
    for a, b, c in itertools.permutations(groupings, 3):
        between = variation_of_information(a, b)
        assert 0 <= between <= math.log(12) + 1e-12
        assert between == pytest.approx(variation_of_information(b, a))
        assert between <= variation_of_information(a, c) + variation_of_information(c, b) + 1e-12


def test_variation_of_information_ignores_label_names(rng):
    labels = rng.integers(4, size=30)
    names = np.array([7, -2, 900, 0])
    assert variation_of_information(labels, names[labels]) == 0.0


def test_variation_of_information_of_singletons_and_one_group_is_log_items():
    assert variation_of_information(range(10), [0] * 10) == pytest.approx(math.log(10))


def test_difference_of_the_truth_is_the_mean_distance_of_random_groupings(rng):
    truth = rng.integers(3, size=40)
    difference = variation_of_information_difference(truth, truth, seed=1, num_random=400)
    groupings = np.random.default_rng(2).integers(3, size=(400, 40))
    distances = [variation_of_information(truth, labels) for labels in groupings]
    error = np.std(distances) * math.sqrt(2 / 400)
    assert difference == pytest.approx(np.mean(distances), abs=4.5 * error)


def test_difference_of_a_random_estimate_is_near_zero(rng):
    truth = rng.integers(3, size=40)
    values = [
        variation_of_information_difference(truth, rng.integers(3, size=40), seed=seed)
        for seed in range(100)
    ]
    assert abs(np.mean(values)) < 4.5 * np.std(values) / math.sqrt(len(values))


def test_difference_of_all_singletons_is_zero(rng):
    """The only grouping of n items into n groups is the estimate itself."""
    truth = rng.integers(3, size=9)
    assert variation_of_information_difference(truth, np.arange(9)) == pytest.approx(0, abs=1e-12)


def test_co_clustering_equals_counting(rng):
    draws = rng.integers(3, size=(2, 25, 6))
    matrix = co_clustering(draws)
    for i, j in itertools.product(range(6), repeat=2):
        together = [a == b for a, b in zip(draws[..., i].flat, draws[..., j].flat, strict=True)]
        assert matrix[i, j] == sum(together) / 50


def test_num_groups_equals_set_sizes(rng):
    draws = rng.integers(6, size=(2, 7, 8))
    counts = num_groups(draws)
    assert counts.shape == (2, 7)
    for index in np.ndindex(2, 7):
        assert counts[index] == len(set(draws[index].tolist()))


@pytest.mark.slow
def test_to_arviz_keeps_the_draws_of_a_run(key):
    import numpyro
    import numpyro.distributions as dist

    def model(observed):
        mean = numpyro.sample("mean", dist.Normal())
        numpyro.sample("observed", dist.Normal(mean), obs=observed)

    kernel = numpyro.infer.NUTS(model)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=5, num_samples=7, progress_bar=False)
    mcmc.run(key, np.float32(0.5))
    exported = to_arviz(mcmc)
    np.testing.assert_array_equal(exported.posterior["mean"][0], mcmc.get_samples()["mean"])
    assert "log_likelihood" not in exported.groups()
    assert "log_likelihood" in to_arviz(mcmc, log_likelihood=True).groups()


def test_to_arviz_without_arviz_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"found none; pip install .jaxmrf\[examples\]"):
        to_arviz(None)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (variation_of_information, ([0, 1], [0, 1, 2]), r"shapes \(2,\) and \(3,\); pass one"),
        (variation_of_information, ([[0, 1]], [[0, 1]]), r"got shapes \(1, 2\) and \(1, 2\)"),
        (variation_of_information, ([0.5, 1.0], [0, 1]), r"integer labels .* of float64; pass"),
        (variation_of_information_difference, ([0], [0, 1]), "expected two groupings of the same"),
        (co_clustering, (np.zeros((0, 3), int),), r"integer labels .* got shape \(0, 3\)"),
        (num_groups, (np.zeros((4, 0), int),), r"num_groups: .* got shape \(4, 0\) of int64"),
    ],
)
def test_bad_labels_raise(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_no_random_groupings_raises():
    with pytest.raises(ValueError, match="expected num_random >= 1, got 0; pass 100"):
        variation_of_information_difference([0, 1], [0, 1], num_random=0)


def test_representative_grouping_is_the_draw_closest_to_the_mean_co_clustering(rng):
    draws = np.array(random_groupings(rng, 7))
    mean = np.mean([labels[:, None] == labels for labels in draws], axis=0)
    found = representative_grouping(draws)
    distance = np.square((found[:, None] == found) - mean).sum()
    assert all(distance <= np.square((labels[:, None] == labels) - mean).sum() for labels in draws)
    assert any(np.array_equal(found, labels) for labels in draws)
