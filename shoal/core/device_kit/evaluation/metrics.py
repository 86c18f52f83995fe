"""Figures beside the accuracy, from labels and scores: they tell more where classes are of unlike sizes."""

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]


def macro_f1(labels: Labels, predicted: Labels) -> float:
    """Mean over the classes, all counted alike, of the harmonic mean of precision and recall, 0 to 1.

    labels, predicted: (n,), n at least 1. The classes are those that occur in either. As scikit-learn's
    `f1_score(average="macro", zero_division=0)`.
    """
    found = []
    for label in np.union1d(labels, predicted):
        true, said = labels == label, predicted == label
        found.append(2.0 * float((true & said).sum()) / float(true.sum() + said.sum()))
    return float(np.mean(found))


def macro_auc(labels: Labels, scores: npt.NDArray[np.float64]) -> float | None:
    """Mean over the classes of the area under the ROC curve of each class against all others, 0 to 1.

    labels: (n,); scores: (n, C). The area of a class is the chance that a sample of it has a higher score for
    it than a sample of another class, ties counting half. Classes that no sample, or every sample, has do not
    count; None where none counts.
    """
    found = []
    for label in np.unique(labels):
        own = labels == label
        if own.all():
            continue
        _, place, counts = np.unique(scores[:, label], return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[place]  # ties share their mean rank
        positive = int(own.sum())
        above = float(ranks[own].sum()) - positive * (positive + 1) / 2.0
        found.append(above / (positive * (len(labels) - positive)))
    return float(np.mean(found)) if found else None
