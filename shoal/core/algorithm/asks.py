"""The terms of a run, of an algorithm's card and the run's parameters. Only the server, and a simulation, has
the card; a device gets what comes out (`shoal.core.privacy.asks`)."""

import math
from dataclasses import replace
from typing import Any

from shoal.core.algorithm.basis import Basis
from shoal.core.algorithm.card import Algorithm
from shoal.core.algorithm.discovery import package_of
from shoal.core.algorithm.parameters import RHO_OF_ACCURACY, most_rounds
from shoal.core.algorithm.training import private_training, scales_inputs, settings_of_training
from shoal.core.errors import ConfigError
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.asks import Asks, RunTerms, read_terms
from shoal.core.privacy.report import OPEN, opened_by

NAMES = {text: name for name, text in OPEN.items()}


def terms_of(card: Algorithm, parameters: Any, basis: Basis | None = None, series: str = "") -> str:
    """The terms of a run, for its devices. basis: by which they describe their data, once it is known.
    series: see `RunTerms`.

    Raises BadPayload for those that no device would read; ConfigError if the card names what no owner is
    asked for.
    """
    asks = asks_of(card, parameters)
    if basis is not None and asks.descriptor is not None:
        asks = replace(asks, described_by=basis.names, classes=basis.classes)
    if series:
        asks = replace(asks, opened=(*asks.opened, "changes"))
    found = str(RunTerms(card.name, package_of(card.name), card.own_tasks, asks, series))
    read_terms(found)
    return found


def terms_of_measuring(card: Algorithm, rho: float | None) -> str:
    """The terms of a run that only measures models. rho: what an accuracy costs; None: it is exact."""
    asks = Asks(opened=("figures",)) if rho is None else Asks(accuracies=1, rho=rho)
    return str(RunTerms(card.name, package_of(card.name), (), asks))


def asks_of(card: Algorithm, parameters: Any) -> Asks:
    """What a run of this algorithm with these parameters asks of one device.

    Example:
        >>> card, _ = find("fedavg")
        >>> asks_of(card, card.configure("default", {"dp_epsilon": 3.0, "rounds": 4})).accuracies
        1
    """
    lessons = getattr(parameters, "lessons", most_rounds(parameters) if hasattr(parameters, "rounds") else 1)
    private = getattr(parameters, "private", False)
    measured = getattr(parameters, "measured", False)  # by which accuracies FLUX ends its warm-up
    longest = math.ceil(most_rounds(parameters) * parameters.LATEST) if measured else 0
    accuracies = longest + int(getattr(parameters, "evaluate", True))
    asked: PrivacySettings | None = getattr(parameters, "asked_privacy", None)
    calibrated = asked is not None and asked.calibrated
    secure = getattr(parameters, "secure_aggregation", False)
    noised = secure and parameters.aggregation == "noised"
    opened, reports = _opened(card, parameters, private, secure, bool(accuracies))
    training = settings_of_training(parameters)
    return Asks(
        lessons=lessons,
        training=private_training(parameters, lessons),
        epochs=training.epochs if private else 1,  # without a guarantee, no cost depends on them
        batch_size=training.batch_size if private else 1,
        descriptor=asked if calibrated else None,
        classes=getattr(parameters, "classes", 0) if calibrated else 0,
        accuracies=accuracies if private else 0,
        rho=RHO_OF_ACCURACY if private and accuracies else 0.0,
        sums=secure,
        noise=parameters.central_noise if noised else 0.0,
        opened=opened,
        reports=reports,
    )


def _opened(
    card: Algorithm, parameters: Any, private: bool, secure: bool, measures: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What leaves in the open, and the kinds of the reports that leave as they were computed."""
    if getattr(parameters, "counts", False):
        return () if private else ("summed histograms",) if secure else ("histograms",), ()
    found, reports = ["summed"] if secure else [] if private else ["weights"], list[str]()
    if scales_inputs(parameters):
        found.append("summary")
    chooses = getattr(parameters, "select", "last") != "last"  # by losses, which no noise protects
    if chooses or (not private and (not secure or measures)):
        found.append("figures")  # training brings some, but for sums, which would not protect them
    asked: PrivacySettings | None = getattr(parameters, "asked_privacy", None)
    if asked is not None and not asked.calibrated:
        found += [asked.mode, "bounds", "figures"]  # bounds come with accuracies
    if (named := getattr(parameters, "OPEN", "")) in OPEN:
        found.append(named)
    elif named and not card.messages:
        hint = f"name one of {', '.join(OPEN)}, or ask for it by messages of the algorithm's own"
        raise ConfigError(f"owners cannot be asked for what {card.name} says in OPEN: {named!r}", hint)
    for message in card.messages:
        for what in opened_by(message, not private):
            if what in NAMES:
                found.append(NAMES[what])
            else:
                reports.append(message.reply.kind)
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(reports))
