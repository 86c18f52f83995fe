"""Guo, Tang and Lin, FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust
Clustering, ICML 2024.

K models are distinguished by concept, so that devices with one concept share a model whatever their classes
and looks are. The sections and equations named below are those of the paper.

In each round a device gets all models and does the

    E-step   weigh the models for each sample by Bayes' rule (eq. 3): how well a model explains the label, how
             much of the device's data the model explained in the last round (omega), and how common the
             class is with the model over all devices. A common class explains little, so classes do not
             form clusters
    M-step   train each model on the samples that it explains (eq. 5)

It sends the trained models, and how many samples of each class each model explains, (K, C). gamma, the
weights of each sample, never leaves the device; omega stays in its memory. A model that explains less than
`skip` of a device's data is not trained there and not sent: once the clusters have formed, one model is sent
instead of K.

The counts tell the server exactly how many samples of each class a device has, because that is what their
columns sum to; and omega, because that is what their rows sum to. `noise` adds a discrete Gaussian of that
standard deviation, in samples, drawn from the operating system's entropy (section E). By its own entry one
sample changes a table by at most 1 (L2). If that were all, each table would be 1 / (2 noise^2)-zCDP, and the
authors' 100 over 200 rounds would be an epsilon of 0.7 at delta 1e-6. It is not all: a sample also influences
omega, which weighs the others in the next round; and the models that are sent with the tables were trained on
the same samples without any guarantee, and their last layers reveal class counts too. So a device that adds
the noise still reports that it has no guarantee.

The E-step weighs each sample separately, which finds poor clusters if devices have few classes: one model
learns one concept's names for some classes and another concept's for the rest, devices split over the models
class by class, and nothing contradicts it. By default a device is therefore weighed as one in the first
`as_one` rounds: all its samples get the same gamma, by how well each model explains them together (3 e-folds
for a nat per sample, half of it from earlier rounds). Its classes then stay together, and so do those of a
concept. After that each sample is weighed separately, as in the paper, so that a device may hold several
concepts.

The number of concepts need not be known. The run begins with more models, which separate concepts better than
as many models as concepts do, and removes the superfluous ones. If models are to be removed in this way,
devices report how badly each model explains their data, K numbers. From round `settle` on, a model is removed
if the others explain its data nearly as well, within `replaceable` nats per sample, one model at a time.
Algorithm 3 removes models that explain little: but of two models of one concept each explains much, and
either could be removed. If models separate more slowly, for example at a lower learning rate, `settle` has to
be later, or different concepts are merged.

Presets. `paper` is what the authors' code used for the paper's tables, as far as that is known; `default` is
what we recommend. They differ in:

    parameter          paper    default  why
    clusters           3        6        see above
    as_one             0        30       see above
    replaceable        0        0.5      see above; on Fashion-MNIST superfluous models were needed for less
                                         than 0.3, and those of concepts finally for more than 1.4
    first              equal    random   with equal weights only the initial models differ, and concepts
                                         separate late; weights that each device draws make the models differ
                                         in round 1, even if an operator gives one model to start from
    weighting          samples  mass     the code trains with gamma as it is, so a model that explains a third
                                         of the data learns at a third of the rate, and averages by samples.
                                         Here gamma is scaled to a mean of 1 and an update weighs what its
                                         model explains: the same direction, at the full rate
    aggregation        mean     clipped  a hostile device must not take over a model; bounds on the length of
                                         updates require updates of one scale, and so weighting=mass
    smoothing          0        1        a class that a model had never explained had a share of 1e-8, and so
                                         attracted every sample of that class by 18 nats
    floor              0        0.05     weights reinforce themselves: at 1e-6 a model had to explain a sample
                                         better by 14 nats, so a device that by chance was in another
                                         concept's cluster stayed there. 0.05 requires 3
    skip               0        0.01     see above
    newcomers_by_class False    True     the code omits the table when it weighs newcomers; eq. 3 includes it
    weight_decay       5e-4     0        not in the paper
    learning_rate      0.06     0.05     the best of 0.01 to 0.05 on Fashion-MNIST with devices weighed as
                                         one. The paper takes the best of 0.01 to 0.1 for each data set
    batch_size         128      16       more steps per round, because rounds are expensive for a fleet

What `paper` does not do: keep an optimizer's momentum over rounds although the weights have changed, drop the
last batch of an epoch, and report the best round by training accuracy.

Variants. `fedrc-adam` updates gamma by Adam (H.3). `fedrc-adaptive` begins with 6 models and removes those
that explain too little (Algorithm 3); as in the paper, each sample is weighed separately from the start, and
no other models are removed. FedEM, which is FedRC without the table of classes, has a folder of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shoal.core.algorithm import Algorithm, PlacingParameters, RoundParameters, setting
from shoal.core.algorithms.fedrc.messages import Measure, Measured, Mix, Mixed, Weigh
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import MAX_BUILT


@dataclass(frozen=True)
class Parameters(RoundParameters, PlacingParameters):
    """The number of models is found: those that others can replace are removed."""

    REMOVED: ClassVar[Mapping[str, Any]] = {"beta1": 0.9, "beta2": 0.99}

    rounds: int = 40
    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 0.05
    clusters: int = setting(
        6, "K, the number of models at first.", unit="models", at_least=1, at_most=MAX_BUILT
    )
    classes: int = setting(10, "C, classes among the run's labels.", unit="classes", at_least=1)
    table: bool = setting(True, "Take into account how common classes are with each model.", rare=True)
    smoothing: float = setting(
        1.0,
        "Additional samples of each class that every model is assumed to have explained.",
        unit="samples",
        at_least=0,
        rare=True,
    )
    newcomers_by_class: bool = setting(True, "Use the table of classes for newcomers too.", rare=True)
    first: Literal["random", "equal"] = setting(
        "random", "A device's weights before its first round.", rare=True
    )
    floor: float = setting(
        0.05,
        "Least weight of a model in the next E-step; at most 1 / clusters.",
        at_least=0,
        at_most=1,
        rare=True,
    )
    skip: float = setting(
        0.01,
        "A device does not train a model of at most this weight; below 1 / clusters.",
        at_least=0,
        below=1,
        rare=True,
    )
    weighting: Literal["mass", "samples"] = setting(
        "mass",
        "mass: gamma is scaled to a mean of 1, and an update weighs the samples that its model explains. "
        "samples: gamma is used as it is, and an update weighs all samples of the device.",
        rare=True,
    )
    adam: bool = setting(False, "Update gamma by Adam (H.3).", rare=True)
    as_one: int = setting(
        30,
        "First rounds in which all samples of a device are weighed as one.",
        unit="rounds",
        at_least=0,
        rare=True,
    )
    replaceable: float = setting(
        0.5,
        "Remove a model that the others could replace at a lower cost than this for remove_after rounds in a "
        "row; 0: remove none.",
        unit="nats per sample",
        at_least=0,
        rare=True,
    )
    settle: int = setting(
        12, "Rounds before models can be found replaceable.", unit="rounds", at_least=0, rare=True
    )
    remove_below: float = setting(
        0.0,
        "Remove a model that explains a smaller share of all samples for remove_after rounds in a row "
        "(Algorithm 3); 0: remove none.",
        at_least=0,
        below=1,
        rare=True,
    )
    remove_after: int = setting(
        3, "Rounds in a row; see replaceable and remove_below.", unit="rounds", at_least=1, rare=True
    )
    noise: float = setting(
        0.0,
        "Standard deviation of the noise that is added to class counts.",
        unit="samples",
        at_least=0,
        rare=True,
    )
    predict: Literal["ensemble", "hard", "tuned"] = setting(
        "ensemble",
        "The prediction whose accuracy is reported: that of the ensemble by omega, of its heaviest model "
        "(hard), or of the ensemble after one more training on the device (tuned, FedRC-FT). The facts of "
        "the run have all three.",
        rare=True,
    )

    def check(self) -> None:
        super().check()
        share = 1.0 / self.clusters
        if self.floor > share or self.skip >= share:
            name = "floor" if self.floor > share else "skip"
            raise ConfigError(
                f"parameter {name} cannot be {getattr(self, name)} with clusters={self.clusters}",
                f"set floor to at most {share:.3g}, and skip below that",
            )
        if self.weighting == "samples" and self.aggregation != "mean":
            raise ConfigError(
                f"weighting=samples cannot be combined with aggregation={self.aggregation}: a device that is "
                "hardly in a cluster hardly moves its model, which misleads the bounds on updates",
                "set weighting=mass, or aggregation=mean",
            )
        if self.noise and (self.weighting == "mass" or self.replaceable):
            raise ConfigError(
                "noise hides how much of a device's data a model explains, which weighting=mass and "
                "replaceable depend on",
                "set weighting=samples, aggregation=mean and replaceable=0, or noise=0",
            )


PAPER = {
    "clusters": 3,
    "as_one": 0,
    "replaceable": 0.0,
    "batch_size": 128,
    "learning_rate": 0.06,
    "weight_decay": 5e-4,
    "smoothing": 0.0,
    "newcomers_by_class": False,
    "first": "equal",
    "floor": 0.0,
    "skip": 0.0,
    "weighting": "samples",
    "aggregation": "mean",
    "placing": "paper",
}

ALGORITHM = Algorithm(
    name="fedrc",
    summary="models that differ by concept, whatever classes a device has (Guo et al. 2024)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fedrc.server",
    device_module="shoal.core.algorithms.fedrc.device",
    presets={"paper": PAPER},
    variants={
        "fedrc-adam": {"adam": True},
        "fedrc-adaptive": {"clusters": 6, "remove_below": 0.05, "replaceable": 0.0, "as_one": 0},
    },
    messages=(Mix, Mixed, Measure, Measured, Weigh),
    initial=lambda parameters: parameters.clusters,
)
