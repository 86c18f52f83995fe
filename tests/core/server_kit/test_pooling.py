"""Clusters share what the scatter of their devices explains, and no more."""

import numpy as np
import pytest

from shoal.core.exchange.tensors import blocks
from shoal.core.server_kit.aggregation import pooling as module
from shoal.core.server_kit.aggregation.pooling import Pooling, pooled
from shoal.core.server_kit.aggregation.robust import Spread, Update, combine
from shoal.core.types import Tensors

WIDTH = 400


def base() -> Tensors:
    return {"w": np.zeros(WIDTH, np.float32), "seen": np.array(7)}


class Rounds:
    """Rounds of clusters whose devices want to go to `centers`, give or take some noise."""

    def __init__(self, centers: dict[str, float], devices: int, seed: int = 3, most: float = 1.0) -> None:
        self.chance, self.devices, self.most = np.random.default_rng(seed), devices, most
        self.centers = {
            key: size * np.random.default_rng(number).normal(size=WIDTH)
            for number, (key, size) in enumerate(sorted(centers.items()))
        }
        self.pooling = Pooling()

    def play(self) -> tuple[dict[str, Tensors], dict[str, Tensors]]:
        """The models by each cluster's own devices, and with shared steps."""
        before = {key: base() for key in self.centers}
        found = {}
        for key, center in self.centers.items():
            steps = center + self.chance.normal(size=(self.devices, WIDTH))
            updates = {
                f"{key}-{number}": Update({"w": step.astype(np.float32), "seen": np.array(7)}, 1.0)
                for number, step in enumerate(steps)
            }
            found[key] = combine("clipped", before[key], updates)
        after = {key: each.model for key, each in found.items()}
        self.spreads = {key: each.spread for key, each in found.items() if each.spread}
        shared, self.pooling = pooled(before, after, self.spreads, self.pooling, self.most)
        return after, shared


def distance(found: dict[str, Tensors], wanted: dict[str, np.ndarray]) -> float:
    return float(np.mean([np.square(found[key]["w"] - wanted[key]).mean() for key in wanted]))


def test_clusters_that_want_the_same_share_nearly_all_and_gain() -> None:
    rounds = Rounds({"c0": 0.0, "c1": 0.0, "c2": 0.0}, devices=3)
    own, shared = rounds.play()
    assert min(rounds.pooling.share(key) for key in own) > 0.8
    assert distance(shared, rounds.centers) < 0.5 * distance(own, rounds.centers)


def test_clusters_that_differ_keep_their_steps() -> None:
    rounds = Rounds({"c0": 5.0, "c1": 5.0, "c2": 5.0}, devices=3)
    own, shared = rounds.play()
    assert max(rounds.pooling.share(key) for key in own) < 0.05
    assert distance(shared, rounds.centers) == pytest.approx(distance(own, rounds.centers), rel=0.02)


def test_between_the_two_sharing_is_better_than_all_and_nothing() -> None:
    rounds = Rounds({"c0": 0.6, "c1": 0.6, "c2": 0.6, "c3": 0.6}, devices=3)
    own, shared = rounds.play()
    mean = np.mean([each["w"] for each in own.values()], axis=0)
    one = distance({key: {"w": mean} for key in own}, rounds.centers)
    assert distance(shared, rounds.centers) < min(one, distance(own, rounds.centers))


def test_a_cluster_of_few_devices_shares_more() -> None:
    before = {key: base() for key in ("c0", "c1")}
    after = {
        key: {"w": np.full(WIDTH, step, np.float32), "seen": np.array(7)}
        for key, step in (("c0", 1.0), ("c1", 1.2))
    }
    square = 3.0 * WIDTH
    spreads = {"c0": Spread(square, 1 / 2), "c1": Spread(square, 1 / 8)}
    _, found = pooled(before, after, spreads, Pooling({"c0": 1e3, "c1": 1e3}), 1.0)
    assert found.noise["c0"] == pytest.approx(4.0 * found.noise["c1"])
    assert found.share("c0") > 2.0 * found.share("c1")


def test_one_liar_in_a_cluster_of_two_does_not_decide_how_much_others_share() -> None:
    """The two updates may scatter as widely as it likes: the others share somewhat more, and no more."""
    before = {key: base() for key in ("c0", "c1", "c2")}
    after = {
        key: {"w": np.full(WIDTH, step, np.float32), "seen": np.array(7)}
        for key, step in (("c0", 1.0), ("c1", 3.0), ("c2", 2.0))
    }
    honest = {"c0": Spread(2.0 * WIDTH, 1 / 4), "c1": Spread(10.0 * WIDTH, 1 / 4)}
    shares = []
    for scatter in (1.0, 10.0, 1e9):
        spreads = {**honest, "c2": Spread((4.0 + scatter) * WIDTH, 1 / 2)}
        shares.append(pooled(before, after, spreads, Pooling({"c0": 1e3, "c1": 1e3}), 1.0)[1].share("c0"))
    assert shares[0] < shares[1] == shares[2] < 2.0 * shares[0]


def test_the_moments_by_hand() -> None:
    before = {key: {"w": np.zeros(1)} for key in ("c0", "c1")}
    after = {"c0": {"w": np.array([2.0])}, "c1": {"w": np.array([-2.0])}}
    # Two devices each, at 1 and 3, and at -1 and -3: variance 2, so 1 for each mean. The means are 4 apart,
    # with a sum of squares of 8 around 0, of which 1 is by chance.
    spreads = {key: Spread(1.0, 1 / 2) for key in after}
    shared, found = pooled(before, after, spreads, Pooling(), 1.0)
    assert found == Pooling({"c0": 7.0, "c1": 7.0}, {"c0": 1.0, "c1": 1.0})
    assert found.share("c0") == 1 / 8
    assert shared["c0"]["w"] == pytest.approx(2.0 - 2.0 / 8)
    assert pooled(before, after, spreads, Pooling(), 0.5)[0]["c0"]["w"] == pytest.approx(2.0 - 1.0 / 8)


def test_rounds_add_up() -> None:
    rounds = Rounds({"c0": 0.0, "c1": 0.0}, devices=2)
    rounds.play()
    first = rounds.pooling
    rounds.play()
    assert all(rounds.pooling.noise[key] > first.noise[key] for key in first.noise)


def test_rounds_without_a_cluster_count_neither_for_it_nor_against_it() -> None:
    """Where few devices take part in a round, some clusters have none of them."""
    rounds = Rounds({"c0": 0.3, "c1": 0.3, "c2": 0.3}, devices=3)
    rounds.play()
    before = rounds.pooling
    center = rounds.centers.pop("c2")
    for _ in range(5):
        rounds.play()
    assert rounds.pooling.share("c2") == before.share("c2") > 0.5
    rounds.centers["c2"] = center
    rounds.play()
    assert rounds.pooling.share("c2") == pytest.approx(rounds.pooling.share("c0"), abs=0.1)


def test_a_cluster_of_one_device_goes_toward_the_mean_of_all_as_far_as_is_given() -> None:
    before = {key: {"w": np.zeros(1)} for key in ("c0", "c1", "c2")}
    after = {"c0": {"w": np.array([1.0])}, "c1": {"w": np.array([2.0])}, "c2": {"w": np.array([3.0])}}
    spreads = {key: Spread(0.0, 1.0) for key in after}
    # No step counts as longer than the middle one, which is 2: the mean is of 1, 2 and 2.
    shared, found = pooled(before, after, spreads, Pooling(), 1.0, {"c0": 0.5, "c2": 1.0})
    assert shared["c0"]["w"] == pytest.approx((1.0 + 5.0 / 3.0) / 2.0)
    assert shared["c1"]["w"] == 2.0
    assert shared["c2"]["w"] == pytest.approx(5.0 / 3.0)
    assert found == Pooling(), "nothing was learned of how clusters scatter"
    assert pooled(before, after, spreads, Pooling(), 0.0, {"c0": 0.5})[0] == after


def test_a_cluster_of_one_device_changes_nothing_of_the_others() -> None:
    rounds = Rounds({"c0": 0.5, "c1": 0.5}, devices=3)
    own, shared = rounds.play()
    before = {key: base() for key in ("c0", "c1", "c2")}
    lone = {"w": np.full(WIDTH, 1e6, np.float32), "seen": np.array(7)}
    after, spreads = {**own, "c2": lone}, {**rounds.spreads, "c2": Spread(0.0, 1.0)}
    found, _ = pooled(before, after, spreads, Pooling(), 1.0, {"c2": 0.5})
    for key in own:
        np.testing.assert_array_equal(found[key]["w"], shared[key]["w"])


def test_nothing_is_shared_where_nothing_is_known() -> None:
    rounds = Rounds({"c0": 0.0, "c1": 0.0}, devices=1)
    own, shared = rounds.play()
    assert shared == own
    assert rounds.pooling == Pooling()


@pytest.mark.parametrize("clusters", [["c0"], []])
def test_a_cluster_without_others_keeps_its_step(clusters: list[str]) -> None:
    rounds = Rounds(dict.fromkeys(clusters, 0.0), devices=3)
    own, shared = rounds.play()
    assert shared == own


def test_a_model_that_is_no_mean_of_this_round_is_left_alone() -> None:
    before = {key: base() for key in ("c0", "c1", "c2")}
    after = {**before, "c0": {"w": np.ones(WIDTH, np.float32), "seen": np.array(8)}}
    after["c1"] = {"w": -np.ones(WIDTH, np.float32), "seen": np.array(9)}
    spreads = {key: Spread(2.0 * WIDTH, 1 / 2) for key in ("c0", "c1", "gone")}
    shared, found = pooled(before, after, spreads, Pooling(), 1.0)
    assert shared["c2"] is after["c2"]
    assert set(found.noise) == {"c0", "c1"}
    assert shared["c0"]["seen"] == 8
    assert shared["c0"]["w"].dtype == np.float32


def test_blocks_change_nothing_but_the_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Rounds({"c0": 0.5, "c1": 0.5}, devices=3).play()[1]
    monkeypatch.setattr(module, "blocks", lambda size: blocks(size, 7))
    split = Rounds({"c0": 0.5, "c1": 0.5}, devices=3).play()[1]
    for key in whole:
        np.testing.assert_allclose(split[key]["w"], whole[key]["w"], rtol=1e-6)


def test_a_share_of_nothing_changes_nothing() -> None:
    rounds = Rounds({"c0": 0.0, "c1": 0.0}, devices=3, most=0.0)
    own, shared = rounds.play()
    assert shared == own
    assert rounds.pooling == Pooling()
