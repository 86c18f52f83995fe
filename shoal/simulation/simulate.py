"""Federated training of a fleet in one process: `shoal.simulate`, and what the lab's experiments stand on.

The same engine and the same halves of the algorithms run here, in the coordinator and over gRPC, and with the
same seeds they give the same models, bit for bit; on a GPU, but for rounding.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.core.algorithm import Algorithm, State, discover, find, measurement
from shoal.core.algorithm.training import counted_by
from shoal.core.data.dataset import Dataset
from shoal.core.data.histogram import scale_counted
from shoal.core.data.labels import sentence
from shoal.core.data.layouts import AS_THEY_ARE
from shoal.core.data.scale import LEVELS, with_scale
from shoal.core.device_kit.learner import Latent, Learner, initial_weights, tensors_of
from shoal.core.device_kit.shapes import applied
from shoal.core.engine import simulate as engine
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import BadPayload, ConfigError, DeviceFault, Refused, brief
from shoal.core.exchange.messages import Evaluate
from shoal.core.exchange.tensors import check_manifest, manifest_of
from shoal.core.server_kit import going_on, placing
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.server_kit.learned import completed
from shoal.core.texts import listed, measure
from shoal.core.types import Tensors
from shoal.core.verdict import Measured, Verdict, verdict
from shoal.result import Accuracy, Comparison, Placement, Result, Round
from shoal.simulation import references
from shoal.simulation.fleet import Fleet
from shoal.simulation.learners import beginning_with, guess, layout_for, learner_of, probabilities
from shoal.simulation.progress import Progress, Shown
from shoal.simulation.recorder import Recorder
from shoal.simulation.simulated import NEWCOMER, SimulatedDevices, on_threads, spooled
from shoal.simulation.together import Together
from shoal.simulation.together import together as together_on_gpu
from shoal.simulation.workers import workers as beside

if TYPE_CHECKING:
    from shoal.core.inference.graph.model import Graph

FEW_TESTS, MAX_NAMED = 5, 3
"""Test samples below which a device's accuracy is remarked on, and how many such devices are named."""


@brief
def simulate(
    algorithm: str | Algorithm,
    fleet: Fleet | Mapping[str, Any],
    *,
    model: Any = None,
    latent: Latent | str | None = None,
    options: Mapping[str, Any] | None = None,
    preset: str = "default",
    seed: int = 42,
    model_seed: int | None = None,
    from_: "SimulationResult | None" = None,
    device: str = "auto",
    threads: int = 1,
    workers: int | None = None,
    participation: float = 1.0,
    progress: bool | Progress | None = None,
    **parameters: Any,
) -> "SimulationResult":
    """Train a fleet by an algorithm, in this process, and measure what each device gets.

    algorithm: its name or a variant's, see `shoal.algorithms()`. fleet: a `shoal.Fleet`, or what makes one.
    model: a torch module class or a function that builds one, a module, from whose weights the run then
    starts, whatever the seed is, a `shoal.Learner`, the path of a learner.py, the name of a built-in network
    with its `options`, or None for a small network that fits the data. Samples go into it as they are, or,
    where it does not take them so, with a channel in front, with the last axis first, or flattened: the
    result's `remarks` say it. latent: the submodule whose output describes a sample, such as "hidden", or a
    function (model, x) -> (B, v); by default the module's method `latent`, or else what goes into its last
    linear layer. preset: named parameters of the algorithm, such as "paper". seed: of the sampling and
    shuffling; model_seed: of the initial weights, the same number by default. from_: an earlier result of the
    same algorithm, from whose models, clusters and scale this run goes on, with its network if no model is
    given. device: where to compute: auto, cpu or cuda; on a GPU a round's devices train together, where their
    network allows it. threads: of PyTorch in this process; 0 leaves it to PyTorch, whose choice pays for
    large models on an idle machine only. workers: do the devices' tasks in this many processes, on the CPU,
    one thread each; any number gives the same models, bit for bit, as one thread. None does them in this
    process. participation: the share of the devices, at least one of them, that each round asks; others are
    drawn for each. progress: True shows a line on stderr, False none, and None shows it to a person who has
    waited for three seconds; or a function that is given each line. parameters: the algorithm's own, such as
    rounds=10; a wrong name or type is a ConfigError. Privacy of the descriptors is off unless they say
    otherwise: nothing leaves this process.

    Raises ConfigError, DataFault and LearnerFault for what is wrong in the arguments; when the run fails,
    Refused, or the learner's own fault if that is the cause.

    Example:
        fleet = shoal.Fleet({"ward-a": (xa, ya), "ward-b": (xb, yb)})
        result = shoal.simulate("flux", fleet, model=Net, latent="hidden", rounds=10)
    """
    if of_fleet := [name for name in ("regression", "test", "held_out") if name in parameters]:
        hint = f"shoal.simulate(..., shoal.Fleet(devices, {of_fleet[0]}={parameters[of_fleet[0]]}))"
        raise ConfigError(f"{of_fleet[0]} says how a fleet is made, and not how it is trained", hint)
    say, fleet = Shown(progress), fleet if isinstance(fleet, Fleet) else Fleet(fleet)
    policy, seed = _policy(len(fleet), participation), _seed("seed", seed)
    model_seed = seed if model_seed is None else _seed("model_seed", model_seed)
    parameters = {key: _plain(each) for key, each in parameters.items()}
    named = {key: each.algorithm if isinstance(each, Result) else each for key, each in parameters.items()}
    card, variant = find(algorithm) if isinstance(algorithm, str) else (algorithm, {})
    name = algorithm if isinstance(algorithm, str) else algorithm.name
    earlier, statistics = parameters.get("of"), parameters.get("inputs")
    configured = configure(card, variant, preset, named, fleet)
    if not isinstance(from_, SimulationResult | None):
        hint = "give what shoal.simulate returned, or a model, from whose weights the run then starts"
        raise ConfigError(f"from_ is a {type(from_).__name__}", hint)
    if from_ is not None and from_.card is not card:
        raise ConfigError(f"that is a result of {from_.card.name}", f"go on from one of {card.name}")
    if from_ is not None and model is None:
        model = from_.learner
    learner = learner_of(model, latent, options, fleet)
    if from_ is not None and card.initial(configured):
        _check_alike(learner, from_.learner)
    layout = layout_for(learner, fleet)
    taken = guess(fleet) if model is None else ""
    given = applied(layout, fleet.shape), probabilities(learner, fleet, layout), sentence(fleet.class_names)
    remarks = list(filter(None, (taken, *given, fleet.perhaps_numbers)))
    for each in remarks:
        say(each)
    started = time.perf_counter()
    devices = SimulatedDevices(card, fleet.arranged(layout), learner, device, seed, spooled)
    server = card.server()
    scale = _scale_of(counted_by(configured), statistics)
    first, *others = [
        with_scale(initial_weights(learner, model_seed + number), scale)
        for number in range(card.initial(configured))
    ] or [{}]
    state = (
        server.start(first, configured, *others)
        if from_ is None
        else going_on.first_state(server, from_.state, configured)
    )
    if isinstance(earlier, Result):
        state = state.begun_for(earlier.clusters)
    has_clusters = from_ is not None and state.models.keys() != {GLOBAL}
    if not has_clusters and (expected := card.clustering(configured)):
        say(f"{name}: {expected}")
    outcome = engine.Outcome(state)
    recorder = Recorder(state, outcome, say, measure(fleet.regression))
    on_gpu = together_on_gpu(devices, device, say)
    helpers = on_gpu if workers is None else beside(devices, workers, device)
    with on_threads(threads), helpers as helping, say:
        calls = (helping or devices).calls()
        engine.simulate(
            server,
            state,
            {name: recorder.listening(name, call) for name, call in calls.items()},
            policy,
            seed,
            keep=spooled,
            watch=recorder.watch,
            ahead=helping.begin if helping else None,
            outcome=outcome,
        )
    if outcome.failed:
        raise recorder.fault or Refused(f"the run failed: {outcome.reason}")
    result = SimulationResult(
        name, card, preset, configured, parameters, fleet, learner, devices, outcome, recorder.rounds, seed,
        model_seed, device, time.perf_counter() - started, policy,
    )  # fmt: skip
    unasked = _unasked(fleet, result.clusters) if participation < 1.0 else ""
    few = filter(None, [_few_tests(fleet), unasked, helping.remark if isinstance(helping, Together) else ""])
    result.layout, result.remarks = layout, (*remarks, *few, *result.remarks)
    if from_ is not None:
        result.began = beginning_with(learner, placing.common_model(from_.state))
    return result


class SimulationResult(Result):
    """A `Result` that can place newcomers and be compared, since the fleet is here.

    remarks: what people should know: how the samples were arranged for the network, how classes are numbered,
    and what the server has to say of how the models were made, such as a model that does not learn. layout:
    how the samples were arranged. began: of a run that went on from an earlier result, the network with the
    weights that this one had for all; else None. state: the algorithm's last state. parameters: all of them,
    with their defaults. given: those that were given. policy: when its rounds opened. fleet, learner, seed,
    model_seed: what was simulated. seconds: how long it took.
    """

    def __init__(
        self,
        algorithm: str,
        card: Algorithm,
        preset: str,
        parameters: Any,
        given: Mapping[str, Any],
        fleet: Fleet,
        learner: Learner,
        devices: SimulatedDevices,
        outcome: engine.Outcome,
        history: list[Round],
        seed: int,
        model_seed: int,
        device: str,
        seconds: float,
        policy: RoundPolicy,
    ) -> None:
        self.algorithm, self.card, self.preset, self.parameters = algorithm, card, preset, parameters
        self.fleet, self.learner, self.devices = fleet, learner, devices
        self.state: State = outcome.state
        self.outcome, self.history = outcome, history
        self.seed, self.model_seed, self.seconds = seed, model_seed, seconds
        self.given, self.policy, self._device = dict(given), policy, device
        self.models = dict(self.state.models)
        self.clusters = {
            name: self.state.assignments[name] for name in fleet if name in self.state.assignments
        }
        self.facts = dict(self.state.facts)
        self.remarks = tuple(self.state.remarks)
        self.layout = AS_THEY_ARE
        self.began: Learner | None = None
        self.class_names = fleet.class_names

    @cached_property
    def accuracy(self) -> Accuracy:
        server = self.card.server()
        tasks = {key: measurement(server, self.state, key) for key in set(self.clusters.values())}
        return Accuracy(
            {name: self.devices.accuracy(name, tasks[key]) for name, key in self.clusters.items()}
        )

    @cached_property
    def verdict(self) -> Verdict | None:
        if self.statistics:
            return None
        rows = []
        for name, accuracy in self.accuracy.items():
            parts = self.fleet[name].test.y, self.fleet[name].stage(0).y
            classes = [y for y in parts if y is not None and y.dtype.kind != "f"]
            counts = [np.bincount(y, minlength=self.fleet.classes) for y in classes]
            rows.append(Measured(accuracy, self.clusters[name], len(self.fleet[name].test), *counts))
        losses = [each.loss for each in self.history if each.trained and each.loss is not None]
        given = any(name in self.given for name in ("learning_rate", "batch_size", "epochs", "optimizer"))
        likely = self.learner.loss is None and self.learner.train is None
        return completed(verdict(rows, losses, given, likely), self.state)

    @cached_property
    def tuned(self) -> Accuracy:
        """The same of what devices have that fine-tune their cluster's model, as `fedclient place` does.

        Where devices predict in a way of the algorithm's own, it is what they have anyway.
        """
        server, found = self.card.server(), dict(self.accuracy)
        for name in found:
            task = self.devices.tuned(server, self.state, name)
            if task is not None:
                found[name] = self.devices.accuracy(name, task)
        return Accuracy(found)

    @brief
    def weights(self, cluster: str) -> Tensors:
        """The tensors of a cluster, or of the common model, "global", which a newcomer may get, too."""
        if cluster == GLOBAL and cluster not in self.models:
            return dict(placing.common_model(self.state))
        return super().weights(cluster)

    def place(self, x: Any, y: Any = None) -> Placement:
        data, arranged = self.fleet.read(NEWCOMER, x, y), self.layout.shape(self.fleet.shape)
        if data.x.shape[1:] == self.fleet.shape:
            data = Dataset(self.layout.apply(data.x), data.y)
        elif data.x.shape[1:] != arranged:
            raise BadPayload(
                f"a sample of the newcomer has shape {data.x.shape[1:]}, and the fleet's {self.fleet.shape}",
                "give an array of samples, one in each row",
            )
        server = self.card.server()
        try:
            placed = self.devices.placed(server, self.state, NEWCOMER, data)
        except (Refused, DeviceFault) as refusal:  # labels are missing, say, or samples are too few
            return Placement(None, 0.0, str(refusal))
        answer = placed.assignment
        return Placement(
            None if answer.abstained else answer.cluster,
            answer.confidence,
            answer.reason,
            answer.cluster,
            answer.distance,
            answer.runner_up or None,
            answer.runner_up_distance,
            placed.mixture,
        )

    @brief
    def compare(self, *algorithms: str, progress: bool | Progress | None = None) -> Comparison:
        """This result beside those of other algorithms, on the same fleet, with the same model and seed.

        They are run with their defaults and those of this run's parameters that they have too, such as
        rounds, and ask as many devices in each round. Where this run went on from an earlier one, they begin
        with the mean of its models, but for those that begin with several, such as IFCA. Without names: one
        model for all (`fedavg`), each device by itself (`local`), and all data in one place (`pooled`); see
        `shoal.simulation.references`.
        """
        results: dict[str, Result] = {self.algorithm: self}
        with Shown(progress) as say:
            for name in algorithms or ("fedavg", *references.NAMES):
                if name == references.LOCAL:
                    results[name] = references.local(self.fleet, partial(self.again, "fedavg"), say)
                elif name == references.POOLED:
                    train = partial(self.again, "fedavg")
                    results[name] = references.pooled(self.fleet, train, self._measured, say)
                elif name not in results:
                    results[name] = self.again(name, self.fleet, say)
        return Comparison(results)

    def _measured(self, model: Tensors) -> Accuracy:
        """The accuracy of another model on each device."""
        task = Evaluate(model, "test", GLOBAL)
        return Accuracy({name: self.devices.accuracy(name, task, newcomer=True) for name in self.fleet})

    @brief
    def deploy(self, folder: Path | str) -> Path:
        """Write what starts the same run on a real fleet, and print the commands. Returns the folder.

        run.yaml: the run's settings, for the server. weights.safetensors: what this simulation began with.
        graph.onnx: the network for ONNX files and devices without PyTorch, where it can be traced.
        device.yaml, and learner.py unless the network is one of the library: for each device.

        Of a class or function, the text is copied with what it uses, also from a notebook. Raises ConfigError
        for a network without a text, such as one that was built already, and for a run that went on from an
        earlier one.

        Example:
            result.deploy("fleet")    # then: fedserver run start --file fleet/run.yaml
        """
        from shoal.simulation import deploying

        sys.stdout.write(deploying.deploy(self, Path(folder)))
        return Path(folder)

    @cached_property
    def _graph(self) -> "Graph":
        from shoal.simulation.deploying import graph_of

        return graph_of(self)

    def _onnx(self, cluster: str) -> bytes:
        from shoal.core.inference.graph.binding import bound

        return bound(self._graph, self.weights(cluster))

    def again(self, name: str, fleet: Fleet, progress: bool | Progress = False) -> "SimulationResult":
        """Another algorithm's result, or of another fleet, with this one's model, seed and parameters, and
        with as large a share of the devices in each round."""
        asked, card = self.policy.devices or len(self.fleet), find(name)[0]
        known = {each.name for each in fields(card.parameters)}
        begins_with_one = card.initial(card.configure("default", {})) == 1
        return simulate(
            name,
            fleet,
            model=self.began if self.began and begins_with_one else self.learner,
            seed=self.seed,
            model_seed=self.model_seed,
            device=self._device,
            participation=asked / len(self.fleet),
            progress=progress,
            **{key: value for key, value in self.given.items() if key in known},
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row for each device: its name, cluster, accuracy, samples to train on, and bytes both ways."""
        return [
            {
                **row,
                "samples": len(self.fleet[row["device"]].stage(0)),
                "bytes_up": self.outcome.up[row["device"]],
                "bytes_down": self.outcome.down[row["device"]],
            }
            for row in super().rows()
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "preset": self.preset,
            "remarks": list(self.remarks),
            "seed": self.seed,
            "model_seed": self.model_seed,
            "rounds": training_rounds(self.history),
            "seconds": {"total": self.seconds, "training": self.devices.training_seconds},
            "bytes": {"up": sum(self.outcome.up.values()), "down": sum(self.outcome.down.values())},
        }

    def _model(self) -> Learner:
        return self.learner


def _check_alike(learner: Learner, earlier: Learner) -> None:
    """Raises ConfigError if the weights of a run with one of them do not fit the other's network."""
    found, wanted = (manifest_of(tensors_of(each.module(0))) for each in (learner, earlier))
    try:
        check_manifest(found, wanted, "the network of model=")
    except BadPayload as error:
        hint = "leave model= out: a run goes on with the network of from_"
        raise ConfigError(f"from_ has another network: {error.message}", hint) from None


def algorithms() -> dict[str, str]:
    """The algorithms that are installed, and what each does in one line. Variants are among them.

    Example:
        >>> shoal.algorithms()["fedavg"]
        'one global model (McMahan et al. 2017)'
    """
    found: dict[str, str] = {}
    for card in discover().values():
        found[card.name] = card.summary
        for variant, changes in card.variants.items():
            changed = ", ".join(f"{name}={value}" for name, value in changes.items())
            found[variant] = f"{card.name} with {changed}"
    return dict(sorted(found.items()))


def configure(
    card: Algorithm, variant: Mapping[str, Any], preset: str, given: Mapping[str, Any], fleet: Fleet
) -> Any:
    """The parameters of a simulated run. Raises ConfigError.

    An algorithm that needs the number of clusters (clusters=-1) is given the true one where the fleet knows
    it. Privacy is off unless it is asked for, since simulated devices have no one to protect.
    """
    changes: dict[str, Any] = dict(variant)
    if hasattr(card.parameters, "classes"):
        changes["classes"] = LEVELS if fleet.regression else fleet.classes
    if hasattr(card.parameters, "privacy"):
        changes["privacy"] = "off"
    changes |= given
    if changes.get("clusters") == -1:
        if fleet.concepts is None:
            raise ConfigError(
                f"{card.name} has to be given the number of clusters, which is unknown for this fleet",
                "give clusters=4, say",
            )
        changes["clusters"] = len(set(fleet.concepts))
    return card.configure(preset, changes)


def _scale_of(name: str, statistics: Any) -> Tensors:
    """The scale of the inputs by a result of statistics; empty without. Raises ConfigError."""
    if not name:
        return {}
    if not isinstance(statistics, Result):
        raise ConfigError(
            f"inputs is {name!r}",
            'give "scaled", "raw", or what was counted: inputs=shoal.simulate("statistics", fleet)',
        )
    return scale_counted(name, statistics.models)


def training_rounds(history: Sequence[Round]) -> dict[str, int]:
    """How many rounds of training there were, and how many of them gave more than one model."""
    trained = [each for each in history if each.trained]
    return {"training": len(trained), "clustered": sum(each.clusters > 1 for each in trained)}


def _few_tests(fleet: Fleet) -> str:
    """Whose accuracy says little beside that of the others, in one sentence; "" where there is none."""
    found = {name: len(one.test) for name, one in fleet.items() if len(one.test) < FEW_TESTS}
    if not found or len(found) == len(fleet):  # of all, the verdict says it
        return ""
    shown = listed([f"{name} ({count})" for name, count in found.items()], MAX_NAMED)
    return f"an accuracy on so few test samples says little: {shown}"


def _unasked(fleet: Fleet, clusters: Mapping[str, str]) -> str:
    """Which devices the result says nothing of, in one sentence; "" where there is none."""
    if not clusters or not (without := [name for name in fleet if name not in clusters]):
        return ""
    return (
        f"{len(without)} of {len(fleet)} devices have no cluster, and no accuracy here, since no round asked "
        f"them for what shows it: {listed(without, MAX_NAMED)}; more rounds, or more devices in each, do"
    )


def _seed(name: str, given: Any) -> int:
    """A seed, which numpy may have counted. Raises ConfigError."""
    found = _plain(given)
    if type(found) is not int or not -(1 << 63) <= found < 1 << 63:
        raise ConfigError(f"{name} is {given!r}", "give a whole number below 2 to the power of 63")
    return found


def _plain(value: Any) -> Any:
    """A number of numpy, such as one of `np.arange`, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _policy(devices: int, participation: float) -> RoundPolicy:
    """How many of the devices each round asks. Raises ConfigError."""
    if not 0.0 < participation <= 1.0:
        raise ConfigError(f"participation is {participation}", "give a share above 0, up to 1")
    asked = max(1, round(participation * devices))
    return RoundPolicy(devices=asked if participation < 1.0 else 0, minimum=asked)
