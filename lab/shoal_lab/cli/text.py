"""What is shown of an experiment."""

from typing import Any


def experiment_text(found: dict[str, Any]) -> str:
    """The result of an experiment, for people."""
    accuracy = found["accuracy"]
    rows = [f"{'device':<12}{'truth':>6}{'cluster':>10}{'known':>8}{'placed':>14}{'test':>8}"]
    for row in accuracy["per_device"]:
        test = "-" if row["test"] is None else f"{100 * row['test']:.1f}"
        rows.append(
            f"{row['device']:<12}{row['concept']:>6}{row['cluster']:>10}{100 * row['known']:>8.1f}"
            f"{row['placed'] or '-':>14}{test:>8}"
        )
    test = "-" if accuracy["test"] is None else f"{accuracy['test']:.2f}"
    own, newcomers, tuned = (
        "" if accuracy[name] is None else f", {name} {accuracy[name]:.2f} %"
        for name in ("own", "newcomers", "tuned")
    )
    formed = f", formed in round {found['clustering_round']}" if found["clustering_round"] else ""
    level = f" level {found['level']}" if found["level"] != "" else ""
    drifts = f", {found['drifts']} drifts ({found['mode']})" if found["drifts"] else ""
    return "\n".join(
        [
            *([found["verdict"]["text"], ""] if found["verdict"] else []),
            *rows,
            "",
            f"{found['algorithm']} ({found['preset']}) on {found['dataset']}, "
            f"{found['shift']}{level}{drifts}, seed {found['seed']}",
            f"known {accuracy['known']:.2f} %{tuned}, test {test} %{own}{newcomers}",
            f"known of the worst device {accuracy['worst']:.2f} %, deviation over devices "
            f"{accuracy['deviation']:.2f}",
            *([f"{accuracy['refused']} devices were refused a model"] if accuracy["refused"] else []),
            f"{found['clusters']} clusters{formed}, ARI against the truth {found['ari']:.2f}",
            f"{found['trained']['training']} rounds of training, {found['trained']['clustered']} of them on "
            "more than one model",
            *([f"privacy of the descriptors: {found['privacy']}"] if found["privacy"] else []),
            f"{found['seconds']['total']:.0f} s, {found['seconds']['training']:.0f} s of them training",
        ]
    )
