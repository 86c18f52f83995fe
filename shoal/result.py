"""What a run found: the same for a simulation and for a run of the daemon, as far as each knows it."""

import html
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from shoal.core.data import histogram
from shoal.core.data.histogram import Statistics
from shoal.core.errors import Missing, NotFound, ShoalError, brief, near
from shoal.core.texts import measure, percent, plural
from shoal.core.types import ModelKey, Tensors
from shoal.core.verdict import SURE, Verdict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from onnxruntime import InferenceSession
    from torch import nn


class NotKnown(ShoalError):
    """The result cannot have that: only a simulation, or only a certain kind of run, knows it."""

    code = "not-known"


@dataclass(frozen=True)
class Round:
    """One round of a run.

    number: from 1; rounds that only measure or describe count too. title, phase: what it was for; phase is ""
    in a daemon's run. seconds: how long it took. devices: how many answered. loss, accuracy: means over the
    devices that measured them, accuracy 0 to 1; None where nothing was measured. measured_on: "train" (while
    training: the accuracy is then that of the models before, on the held-out parts), "held_out" or "test";
    "" where nothing was. trained: whether it was a round of training.
    clusters: models after it. bytes_up, bytes_down: sent to and fetched from the server by all devices.
    accuracies: of each cluster, the mean over its devices that measured one.
    """

    number: int
    title: str
    phase: str
    seconds: float
    devices: int
    loss: float | None
    accuracy: float | None
    measured_on: str
    trained: bool
    clusters: int
    bytes_up: int
    bytes_down: int
    accuracies: Mapping[ModelKey, float] = field(default_factory=dict)


class Accuracy(dict[str, float]):
    """Device -> accuracy on its test part of the model that it uses, 0 to 1.

    Example:
        >>> found = Accuracy({"ward-a": 0.9, "ward-b": 0.7})
        >>> round(found.mean, 2), found.worst
        (0.8, 0.7)
    """

    @property
    def mean(self) -> float:
        """The mean over the devices; NaN where none was measured."""
        return sum(self.values()) / len(self) if self else float("nan")

    @property
    def worst(self) -> float:
        """The lowest accuracy of a device; NaN where none was measured."""
        return min(self.values(), default=float("nan"))


@dataclass(frozen=True)
class Placement:
    """Which cluster an unlabeled newcomer belongs to.

    cluster: its name; None where the run abstains. confidence: 0 (the runner-up is as near) to 1. reason: why
    the run abstains, or how it decided. nearest: the nearest cluster all the same, if any. distance,
    runner_up_distance: in the algorithm's own units; NaN where it has none. mixture: cluster -> its model's
    share in the newcomer's predictions, where several models predict together; empty where one does.
    """

    cluster: str | None
    confidence: float
    reason: str = ""
    nearest: str | None = None
    distance: float = float("nan")
    runner_up: str | None = None
    runner_up_distance: float = float("nan")
    mixture: Mapping[str, float] = field(default_factory=dict)

    @property
    def abstained(self) -> bool:
        """Whether no cluster fits well enough."""
        return self.cluster is None

    def __str__(self) -> str:
        if self.cluster is None:
            return f"no cluster fits: {self.reason}"
        together = ", ".join(f"{share:.0%} {cluster}" for cluster, share in self.mixture.items())
        found = f"{self.cluster}, confidence {self.confidence:.2f}"
        found += f", predicts with {together}" if together else ""
        return f"{found}: {self.reason}" if self.reason else found


class Result:
    """What a run found. Made by `shoal.simulate` and by a run of `shoal.Client`.

    algorithm: its name. models: cluster -> tensors by name. clusters: device -> cluster. history: one
    `Round` each; `pandas.DataFrame(result.history)` is a table of them. accuracy: see `Accuracy`. facts: what
    else the algorithm has to say. class_names: the name of class 0, 1 and so on, where the data have names.
    remarks: what people should know of how the models were made.

    Example:
        result.accuracy.mean            # 0.93
        result.clusters["ward-a"]       # "c0"
        scores = result.module("c0")(x) # of the cluster's model, as a torch module
        result.class_names[scores[0].argmax()]  # "ill", where the fleet's labels are names
        result.place(x_new).cluster     # "c1", or None where the run abstains
        result.compare("fedavg").plot() # beside another algorithm, on the same fleet and seed
    """

    algorithm: str
    models: Mapping[str, Tensors]
    clusters: Mapping[str, str]
    history: Sequence[Round]
    facts: Mapping[str, Any]
    class_names: tuple[str, ...] | None = None
    remarks: tuple[str, ...] = ()

    @property
    @abstractmethod
    def accuracy(self) -> Accuracy: ...

    def module(self, cluster: str, model: Any = None) -> "nn.Module":
        """The torch module of a cluster, with its weights, in evaluation mode. It takes samples in their own
        units, and brings them into the run's scale itself; in the layout that the network takes, as `remarks`
        says, and bytes divided by 255.

        model: what the weights are of, as for `shoal.simulate`; a simulation knows it. Raises NotFound for
        an unknown cluster, and NotKnown for a run of statistics.
        """
        from shoal.core.device_kit.learner import load_weights
        from shoal.core.device_kit.scaling import in_own_units
        from shoal.simulation.learners import learner_of

        self._check_network()
        weights = self.weights(cluster)
        module = learner_of(self._model() if model is None else model).module(seed=0)
        load_weights(module, weights)
        return in_own_units(module.eval())

    def session(self, cluster: str) -> "InferenceSession":
        """The model of a cluster in ONNX Runtime, without PyTorch: session.run(["scores"], {"x": x}).

        It takes the samples that `module` takes. Raises NotFound for an unknown cluster, and for a run
        without a graph; NotKnown for one of statistics; LearnerFault where the network cannot be traced;
        Missing without the packages.
        """
        try:
            from onnxruntime import InferenceSession, SessionOptions
        except ImportError:
            raise Missing("a session needs onnxruntime", "pip install onnxruntime") from None
        self._check_network()
        options = SessionOptions()
        options.log_severity_level = 3  # errors: it warns of tensors that only training uses, as batch norm's
        return InferenceSession(self._onnx(cluster), options, ["CPUExecutionProvider"])

    def _check_network(self) -> None:
        if self.statistics:
            raise NotKnown("a run of statistics trains no network", "its counts: result.statistics")

    def weights(self, cluster: str) -> Tensors:
        """The tensors of a cluster. Raises NotFound, which names the clusters that there are."""
        if cluster not in self.models:
            raise NotFound(f"there is no cluster {cluster!r}", near(cluster, list(self.models)))
        return self.models[cluster]

    def place(self, x: Any, y: Any = None) -> Placement:
        """Which cluster a newcomer with these samples belongs to. Raises NotKnown where it cannot be asked.

        x: (n, ...) as for `shoal.Fleet`. y: classes, only for algorithms that need some labels to place.
        """
        raise NotKnown(
            "this result cannot place newcomers", "a device asks the daemon itself: fedclient place"
        )

    def compare(self, *algorithms: str, progress: bool | Callable[[str], None] | None = None) -> "Comparison":
        """This result beside those of other algorithms, on the same fleet, with the same model and seed."""
        raise NotKnown(
            "this result cannot be repeated with other algorithms: the data stayed on the devices",
            "simulate it: shoal.simulate(...).compare(...)",
        )

    @cached_property
    def statistics(self) -> Mapping[str, Statistics]:
        """Of a run of `statistics`: cluster -> `Statistics` of its devices' data. Empty for other runs."""
        return histogram.statistics_of(self.models)

    @property
    def verdict(self) -> Verdict | None:
        """Whether anything was learned; None where that cannot be judged."""
        return None

    def rows(self) -> list[dict[str, Any]]:
        """One row for each device: its name, cluster and accuracy."""
        return [
            {"device": name, "cluster": cluster, "accuracy": self.accuracy.get(name)}
            for name, cluster in self.clusters.items()
        ]

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a data frame. Raises Missing where pandas is not installed."""
        return frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Everything but the models, as plain values for JSON."""
        return {
            "algorithm": self.algorithm,
            "verdict": None if self.verdict is None else self.verdict.facts(),
            "accuracy": {"mean": self.accuracy.mean, "worst": self.accuracy.worst},
            "devices": self.rows(),
            "history": list(map(asdict, self.history)),
            "facts": dict(self.facts),
            "statistics": {name: each.facts() for name, each in self.statistics.items()},
            "class_names": None if self.class_names is None else list(self.class_names),
        }

    @brief
    def save(self, folder: Path | str) -> Path:
        """Write each model as CLUSTER.safetensors and the rest as result.json. Returns the folder.

        Where the network can be traced, CLUSTER.onnx is the whole model, for samples in their own units.
        Where classes have names, all have them: the header of a safetensors file as JSON under "classes".

        Example:
            result.save("folder")
            model = onnxruntime.InferenceSession("folder/c0.onnx")  # later, without Shoal
            (scores,) = model.run(["scores"], {"x": x.astype("float32")})
            print(shoal.Result.load("folder"))  # or with it
        """
        from shoal.shell import disk, weights

        folder = Path(folder)
        with disk.storing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files = {cluster: disk.inside(folder, f"{cluster}.safetensors") for cluster in self.models}
        header = {"classes": json.dumps(self.class_names)} if self.class_names else {}
        whole = dict[str, bytes]()
        with suppress(ShoalError):  # of a histogram, say, or a network that cannot be traced
            whole = {cluster: self._onnx(cluster) for cluster in self.models}
        for cluster, tensors in self.models.items():
            weights.save(tensors, files[cluster], header)
            graph = files[cluster].with_name(f"{cluster}.onnx")
            if cluster in whole:
                disk.write(graph, whole[cluster])
            else:  # of what was saved here before
                graph.unlink(missing_ok=True)
        former = list[str]()
        with suppress(OSError, ValueError, KeyError, TypeError):
            former = json.loads((folder / "result.json").read_bytes())["models"]
        found = {**self.to_dict(), "models": list(self.models)}
        disk.write(folder / "result.json", json.dumps(found, indent=1).encode())
        for cluster in set(former) - set(self.models):  # no one should take an older result's for this one's
            for suffix in ("safetensors", "onnx"):
                disk.inside(folder, f"{cluster}.{suffix}").unlink(missing_ok=True)
        return folder

    @staticmethod
    @brief
    def load(folder: Path | str) -> "Result":
        """The result that `save` wrote: models, clusters, history, accuracy and verdict.

        `session` takes the ONNX files that were saved, and `module` needs the network. It can neither place
        newcomers nor be compared: for that, simulate again. Raises ConfigError for a folder that has none.

        Example:
            result = shoal.Result.load("folder")
            scores = result.module("c0", model=Net)(x)
        """
        from shoal.saved import SavedResult

        return SavedResult(Path(folder))

    def summary(self) -> str:
        """The result in one line."""
        return self._line(self.history)

    def _line(self, history: Sequence[Round]) -> str:
        trained = [each for each in history if each.trained]
        clustered = sum(each.clusters > 1 for each in trained)
        groups = set(self.clusters.values())
        found = "1 model for all" if len(groups) < 2 else f"{len(groups)} clusters"
        text = f"{self.algorithm}: {found} of {plural(len(self.clusters), 'device')}"
        if self.accuracy:
            what = "mean accuracy" if self._measure == "accuracy" else self._measure
            text += f", {what} {percent(self.accuracy.mean)} (worst {percent(self.accuracy.worst)})"
        if trained:
            text += f"; {plural(len(trained), 'round')} of training"
            text += f", {clustered} of them on clusters" if clustered or len(groups) > 1 else ""
        return text

    def __repr__(self) -> str:
        if self.statistics:
            return histogram.text(self.statistics)
        shown = [
            f"{row['device']:<16}{row['cluster']:<10}{percent(row['accuracy']):>8}" for row in self.rows()
        ]
        more = [f"... and {len(shown) - 20} more devices"] if len(shown) > 20 else []
        return "\n".join([*self._heads(), *shown[:20], *more, *self.remarks])

    def _repr_html_(self) -> str:
        if self.statistics:
            return f"<pre>{html.escape(histogram.text(self.statistics))}</pre>"
        heads = "<br>".join(html.escape(line) for line in self._heads())
        said = "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks)
        return f"<p>{heads}</p>{table(self.rows(), self._measure)}{said}"

    @property
    def _measure(self) -> str:
        """What the shares under "accuracy" are."""
        return measure(self.verdict is not None and self.verdict.numbers)

    def _heads(self) -> list[str]:
        """What is said first: whether anything was learned."""
        return [str(self.verdict), self.summary()] if self.verdict else [self.summary()]

    def _onnx(self, cluster: str) -> bytes:
        """The model of a cluster as an ONNX file."""
        raise NotKnown("this result has no graph of its network", "take the session of the run itself")

    def _model(self) -> Any:
        raise NotKnown("the daemon does not know the network", "give it: result.module(cluster, model=Net)")


class Comparison(Mapping[str, Result]):
    """Results of several algorithms side by side, by name: `comparison["fedavg"].accuracy`."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)

    def __getitem__(self, name: str) -> Result:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each algorithm."""
        return [
            {
                "algorithm": name,
                "clusters": len(set(result.clusters.values())),
                "accuracy": result.accuracy.mean,
                "worst": result.accuracy.worst,
                "bytes": sum(each.bytes_up + each.bytes_down for each in result.history),
                "seconds": sum(each.seconds for each in result.history),
            }
            for name, result in self.items()
        ]

    def gains(self, over: str) -> list[dict[str, Any]]:
        """One row for each cluster of the first result: what its devices gained over another result.

        gain: the mean difference of their accuracies, -1 to 1. error: its standard error, by how much the
        devices differ; None for a cluster of one device, which does not show that. Raises NotFound for an
        unknown name.

        Example:
            result.compare("fedavg").gains("fedavg")  # [{"cluster": "c0", "devices": 3, "gain": 0.04, ...
        """
        if over not in self:
            raise NotFound(f"{over!r} was not compared", near(over, list(self)))
        first, other = next(iter(self.values())), self[over].accuracy
        found = dict[str, list[float]]()
        for device, cluster in sorted(first.clusters.items()):
            found.setdefault(cluster, []).append(first.accuracy[device] - other[device])
        return [
            {"cluster": cluster, "devices": len(each), "gain": fmean(each), "error": _error_of_mean(each)}
            for cluster, each in sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
        ]

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a data frame. Raises Missing where pandas is not installed."""
        return frame(self.rows())

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Each algorithm's mean accuracy as a bar, each device as a dot. Returns the axes.

        Raises Missing where matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError:
            raise Missing("plots need matplotlib", "pip install matplotlib") from None
        if axes is None:
            _, axes = pyplot.subplots(figsize=(6, 0.9 + 0.45 * len(self)), layout="constrained")
        names = list(self)[::-1]
        means = [100 * self[name].accuracy.mean for name in names]
        axes.barh(names, means, height=0.6, color="#c9d7e8")
        for place, (name, mean) in enumerate(zip(names, means, strict=True)):
            dots = [100 * value for value in self[name].accuracy.values()]
            axes.plot(dots, [place] * len(dots), "o", color="#1f4e79", markersize=4, alpha=0.7)
            axes.annotate(
                f"{mean:.1f}", (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9
            )
        axes.set_xlim(0, 102)
        axes.set_xlabel(f"{self._measure}, %   (bar: mean, dots: devices)")
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def __repr__(self) -> str:
        wide = max(10, len(self._measure) + 2)
        lines = [*self._heads(), f"{'algorithm':<14}{'clusters':>9}{self._measure:>{wide}}{'worst':>9}"]
        lines += [
            f"{row['algorithm']:<14}{row['clusters']:>9}{percent(row['accuracy']):>{wide}}"
            f"{percent(row['worst']):>9}"
            for row in self.rows()
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = "<br>".join(map(html.escape, self._heads()))
        return f"<p>{heads}</p>{table(self.rows(), self._measure)}"

    @property
    def _measure(self) -> str:
        return next(iter(self.values()))._measure

    def _heads(self) -> list[str]:
        """Whether the first result has learned anything, and what it gained over the others, in points."""
        name, first = next(iter(self.items()))
        said = [] if first.verdict is None else [str(first.verdict)]
        for other, result in list(self.items())[1:]:
            own = [
                first.accuracy[each] - result.accuracy[each]
                for each in first.accuracy
                if each in result.accuracy
            ]
            error = _error_of_mean(own)
            spread = "" if error is None else f" (± {100.0 * SURE * error:.1f})"
            if own:
                said.append(f"{name} gains {100.0 * fmean(own):+z.1f}{spread} points over {_named(other)}")
        return said


def _named(name: str) -> str:
    """A way to train, in words."""
    words = {
        "local": "each device by itself",
        "pooled": "all data in one place",
        "fedavg": "one model for all",
    }
    return f"{words[name]} ({name})" if name in words else name


def _error_of_mean(values: Sequence[float]) -> float | None:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def frame(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Rows as a data frame. Raises Missing where pandas is not installed."""
    try:
        import pandas as pd
    except ImportError:
        raise Missing("a data frame needs pandas", "pip install pandas, or use .rows()") from None
    return pd.DataFrame(list(rows))


def table(rows: Sequence[Mapping[str, Any]], what: str = "accuracy") -> str:
    """Rows as an HTML table. what: the name of what stands under "accuracy"."""
    if not rows:
        return ""
    heads = "".join(f"<th>{html.escape(what if name == 'accuracy' else name)}</th>" for name in rows[0])
    shares = ("accuracy", "worst")
    lines = "".join(
        "<tr>"
        + "".join(
            f"<td>{percent(value) if name in shares else html.escape(_shown(value))}</td>"
            for name, value in row.items()
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _shown(value: Any) -> str:
    return (
        f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    )
