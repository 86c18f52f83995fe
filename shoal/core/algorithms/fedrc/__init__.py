"""Guo, Tang and Lin, FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust
Clustering, ICML 2024.

K models are told apart by concept, so that devices share one whatever their classes and looks are. Sections
and equations named below are the paper's.

In each round a device gets all models and does

    E-step   each sample's models by Bayes' rule (eq. 3): how well a model explains its label, how much of the
             device's data the model explained in the last round (omega), and how usual its class is with the
             model over all devices: what is usual explains nothing, so classes do not make clusters
    M-step   trains each model on the samples it explains (eq. 5)

and sends the trained models, and how many samples of each class each model explains, (K, C). gamma, the
models of each sample, never leaves the device; omega stays in its memory. A model that explains less than
`skip` of a device's data is not trained there and not sent: once the clusters stand, one model goes up
instead of K.

The counts tell the server how many samples of each class a device has, exactly, as their columns sum to
that; and omega, as their rows do. `noise` adds a discrete Gaussian of that standard deviation, in samples,
drawn of the operating system's entropy (section E). By its own entry one sample moves a table by 1 at most
(L2). If that were all, each table would be 1 / (2 noise^2)-zCDP, and the authors' 100 over 200 rounds an
epsilon of 0.7 at delta 1e-6. It is not all: a sample is also in omega, which weighs the others in the next
round; and the models beside the tables were trained on the same samples without any guarantee, and their last
layers give class counts away too. So a device that adds it still reports that it has no guarantee.

The E-step weighs each sample by itself, and where devices have few classes that finds poor clusters: one
model learns one concept's names for some classes and another's for the rest, devices split over the models
class by class, and nothing contradicts it. So by default a device is weighed as one in the first `as_one`
rounds: all its samples get the same gamma, by how well each model explains them together (3 e-folds for a nat
a sample, half of that from the rounds before). Its classes then stay together, and so do those of a concept.
After that each sample is weighed by itself, as in the paper, so that a device may hold several concepts.

How many concepts there are need not be known: the run begins with more models, which part concepts better
than as many as there are, and sheds what is spare. Devices tell how badly each model explains their data, K
numbers, where models are to be removed by it. From round `settle` on, a model without which they would be
explained nearly as well, by less than `replaceable` nats a sample worse, is removed, one at a time. Algorithm
3 removes what explains little: but of two that share a concept each explains much, and either can go. Where
models part more slowly, as at a lower learning rate, `settle` has to be later, or concepts are taken for one.

Presets. `paper` is what the authors' code ran for its tables, as far as it can be told; `default` is what we
recommend. They differ in:

    parameter          paper    default  why
    clusters           3        6        see above
    as_one             0        30       see above
    replaceable        0        0.5      see above; on Fashion-MNIST spare models were needed for less than
                                         0.3, those of concepts in the end for more than 1.4
    first              equal    random   with equal weights only the initial models differ, and concepts part
                                         late; weights that each device draws set models apart in round 1,
                                         also where an operator gives one model to start from
    weighting          samples  mass     the code trains with gamma as it is, so a model that explains a third
                                         of the data learns at a third of the rate, and averages by samples.
                                         Here gamma is scaled to a mean of 1 and updates are weighed by what
                                         their model explains: the same direction, at the full rate
    aggregation        mean     clipped  a hostile device must not carry a model away; bounds on the length of
                                         updates need updates of one scale, so they need weighting=mass
    smoothing          0        1        a class that a model has never explained had a share of 1e-8, and
                                         attracted every sample of that class by 18 nats
    floor              0        0.05     weights feed on themselves: at 1e-6 a model had to explain a sample
                                         better by 14 nats, so a device that chance put into the cluster of
                                         another concept stayed there. 0.05 asks for 3
    skip               0        0.01     see above
    newcomers_by_class False    True     the code forgot the table where newcomers are weighed; eq. 3 has it
    weight_decay       5e-4     0        not in the paper
    learning_rate      0.06     0.05     of 0.01 to 0.05 what served Fashion-MNIST best, with devices weighed
                                         as one. The paper takes the best of 0.01 to 0.1 for each data set
    batch_size         128      16       more steps a round, for the rounds are what a fleet has few of

What `paper` does not do: keep an optimiser's momentum over rounds while the weights under it change, drop the
last batch of an epoch, and report the best round by training accuracy.

Variants: `fedrc-adam` moves gamma by Adam (H.3). `fedrc-adaptive` begins with 6 models and removes those that
explain too little (Algorithm 3); in it, as in the paper, each sample is weighed by itself from the start and
nothing else is removed. FedEM, of which FedRC is the same with the table, has a folder of its own.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import Algorithm, RoundParameters, setting
from shoal.core.algorithms.fedrc.messages import Measure, Measured, Mix, Mixed, Weigh
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import MAX_BUILT


@dataclass(frozen=True)
class Parameters(RoundParameters):
    """The number of models is found: those that others can replace are removed."""

    rounds: int = 40
    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 0.05
    clusters: int = setting(
        6, "K, the number of models at first.", unit="models", at_least=1, at_most=MAX_BUILT
    )
    classes: int = setting(10, "C, classes among the run's labels.", unit="classes", at_least=1)
    table: bool = setting(True, "Take into account how usual classes are with each model.")
    smoothing: float = setting(
        1.0,
        "Samples of each class that every model is assumed to have explained besides.",
        unit="samples",
        at_least=0,
    )
    newcomers_by_class: bool = setting(True, "Use the table of classes for newcomers too.")
    first: Literal["random", "equal"] = setting("random", "A device's weights before its first round.")
    floor: float = setting(
        0.05, "Least weight of a model in the next E-step; at most 1 / clusters.", at_least=0, at_most=1
    )
    skip: float = setting(
        0.01,
        "A device skips a model of at most this weight; below 1 / clusters.",
        at_least=0,
        below=1,
    )
    weighting: Literal["mass", "samples"] = setting(
        "mass",
        "mass scales gamma to a mean of 1 and weighs an update by the samples that its model explains; "
        "samples trains with gamma as it is and weighs by all samples of the device.",
    )
    adam: bool = setting(False, "Move gamma by Adam (H.3).")
    beta1: float = setting(0.9, "Adam's decay of the first moment.", at_least=0, below=1)
    beta2: float = setting(0.99, "Adam's decay of the second moment.", at_least=0, below=1)
    as_one: int = setting(
        30, "Rounds in which all samples of a device are weighed as one.", unit="rounds", at_least=0
    )
    replaceable: float = setting(
        0.5,
        "Remove a model that others could replace at a lower cost than this, for remove_after rounds in a "
        "row; 0: remove none.",
        unit="nats per sample",
        at_least=0,
    )
    settle: int = setting(12, "Rounds before models may be found replaceable.", unit="rounds", at_least=0)
    remove_below: float = setting(
        0.0,
        "Remove a model that explains a smaller share of all samples for remove_after rounds in a row "
        "(Algorithm 3); 0: remove none.",
        at_least=0,
        below=1,
    )
    remove_after: int = setting(3, "Rounds in a row; see remove_below.", unit="rounds", at_least=1)
    noise: float = setting(
        0.0, "Standard deviation of what is added to class counts.", unit="samples", at_least=0
    )
    predict: Literal["ensemble", "hard", "tuned"] = setting(
        "ensemble",
        "What the reported accuracy is of: the ensemble by omega, its heaviest model (hard), or the ensemble "
        "after training once more on the device (tuned, FedRC-FT). All three are in the facts.",
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
                f"weighting=samples and aggregation={self.aggregation} do not go together: with it a device "
                "that is hardly in a cluster hardly moves its model, which misleads the bounds on updates",
                "set weighting=mass, or aggregation=mean",
            )
        if self.noise and (self.weighting == "mass" or self.replaceable):
            raise ConfigError(
                "noise hides how much of a device's data a model explains, by which updates are weighed and "
                "replaceable models found",
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
}

ALGORITHM = Algorithm(
    name="fedrc",
    summary="models told apart by concept, whatever classes a device has (Guo et al. 2024)",
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
