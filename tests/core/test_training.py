"""What `auto` means for training, on the server and on the device."""

from typing import Any

import pytest

from shoal.core.algorithm import find
from shoal.core.algorithm.training import settings_of_training
from shoal.core.device_kit.training.fit import fitted
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.server_kit.standard import share_of_rate


def settings(name: str = "fedavg", preset: str = "default", **changes: Any) -> TrainingSettings:
    return settings_of_training(find(name)[0].configure(preset, changes))


def test_with_nothing_set_it_is_adamw_with_clipped_gradients_and_the_device_decides_how_long() -> None:
    found = settings()
    assert found == TrainingSettings(
        epochs=0, batch_size=0, learning_rate=0.002, optimizer="adamw", weight_decay=0.01, clip_norm=1.0
    )


def test_a_number_means_that_number() -> None:
    found = settings(learning_rate=0.03, epochs=3, batch_size=7, weight_decay=0.2)
    assert found == TrainingSettings(3, 7, 0.03, weight_decay=0.2)
    assert settings(optimizer="adam", learning_rate=0.5).learning_rate == 0.5
    assert settings(optimizer="sgd").learning_rate == 0.05
    assert settings(optimizer="sgd").clip_norm == 1.0


@pytest.mark.parametrize("preset", ["paper", "original"])
def test_presets_of_papers_train_as_their_code_did(preset: str) -> None:
    found = settings("fedprox", preset)
    published = {
        "paper": TrainingSettings(10, 128, 0.005, proximal=found.proximal),
        "original": TrainingSettings(20, 10, 0.03, momentum=0.0, proximal=found.proximal),
    }
    assert found == published[preset]
    assert settings("flux", "paper") == TrainingSettings(restart_momentum=True)
    rounds = {
        name: find(name)[0].configure("paper").rounds for name in ("flux", "feroma", "fedrc", "cornflqs")
    }
    assert rounds == {"flux": 10, "feroma": 20, "fedrc": 40, "cornflqs": 20}


def test_with_dp_sgd_it_is_few_steps_over_all_samples() -> None:
    found = settings(dp_epsilon=3.0)
    assert (found.epochs, found.batch_size, found.learning_rate, found.momentum) == (1, 1_000_000, 0.6, 0.0)
    assert (found.optimizer, found.clip_norm, found.weight_decay) == ("sgd", 0.0, 0.0)
    assert settings(dp_epsilon=3.0, learning_rate=0.1).momentum == 0.9


@pytest.mark.parametrize(
    ("samples", "size", "epochs"),
    [(1, 8, 40), (30, 8, 10), (100, 8, 5), (400, 20, 5), (5000, 64, 5), (63, 8, 5), (64, 8, 5)],
)
def test_a_device_makes_forty_steps_and_five_passes_at_least(samples: int, size: int, epochs: int) -> None:
    found = fitted(TrainingSettings(epochs=0, batch_size=0), samples)
    assert (found.batch_size, found.epochs) == (size, epochs)
    assert found.epochs * -(-samples // size) >= 40
    assert fitted(TrainingSettings(3, 5), samples) == TrainingSettings(3, 5)


def test_the_rate_falls_once_in_the_last_third_and_never_before_clusters_are_formed() -> None:
    shares = [share_of_rate("auto", progress, 10) for progress in range(10)]
    assert shares == pytest.approx([1.0] * 8 + [0.55, 0.1])
    late = [share_of_rate("auto", progress, 10, formed=8) for progress in range(10)]
    assert late == pytest.approx([1.0] * 9 + [0.1])
    warming = [share_of_rate("auto", progress, 10, formed=progress) for progress in range(10)]
    assert warming == [1.0] * 10


def test_only_what_says_so_may_be_auto() -> None:
    card, _ = find("fedavg")
    assert card.settings["learning_rate"].legal == "auto, or a number above 0"
    with pytest.raises(ConfigError, match="parameter momentum cannot be 'auto'"):
        card.configure("default", {"momentum": "auto"})
    with pytest.raises(ConfigError, match="learning_rate cannot be 'automatic'; expected auto, or a number"):
        card.configure("default", {"learning_rate": "automatic"})
