"""What the demo found: as JSON, and as a table."""

from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from sklearn.metrics import adjusted_rand_score

from fedserver.cli import text
from fedserver.coordinator.status_types import RunStatus
from shoal.core.types import DeviceId
from shoal.demo import fleet


def summary_of(
    statuses: Mapping[str, RunStatus],
    placements: list[dict[str, Any]],
    certified: list[DeviceId],
    seconds: float,
) -> dict[str, Any]:
    """`summary.json`. Accuracies are shares, 0 to 1; bytes are means over devices and rounds of FLUX.

    certified: the devices that called with a certificate of their own.
    """
    groups = {member.name: member.group for member in fleet.trainers()}
    flux = statuses["flux"]
    clusters = {device.device: device.cluster for device in flux.devices}
    members = sorted(clusters)
    right = {
        group: Counter(clusters[name] for name in members if groups[name] == group).most_common(1)[0][0]
        for group in set(groups.values())
    }
    rounds = flux.summary.rounds
    return {
        "fedavg": accuracies(statuses["fedavg"]),
        "flux": {
            **accuracies(flux),
            "clusters": len(set(clusters.values())),
            "ari": float(
                adjusted_rand_score([groups[name] for name in members], [clusters[name] for name in members])
            ),
        },
        "placements": [
            {
                "device": answer["device"],
                "cluster": answer["cluster"],
                "correct": answer["cluster"] == right[answer["group"]],
                "runner_up": answer["runner_up"],
                "tried": answer["tried"],
                "confidence": answer["confidence"],
                "accuracy": answer["accuracy"],
                "seconds": answer["seconds"],
            }
            for answer in placements
        ],
        "bytes_per_device_round": {
            "up": round(fmean(device.bytes_up for device in flux.devices) / rounds),
            "down": round(fmean(device.bytes_down for device in flux.devices) / rounds),
        },
        "devices": [
            {"device": device.device, "group": groups[device.device], "cluster": device.cluster}
            | {name: figure_of(status, device.device) for name, status in statuses.items()}
            for device in flux.devices
        ],
        "certified": certified,
        "privacy": [fleet.PRIVACY, *text.privacy(flux.released)],
        "seconds": round(seconds, 1),
    }


def accuracies(status: RunStatus) -> dict[str, float]:
    """Mean and lowest accuracy of the devices on their own test images."""
    measured = [device.accuracy for device in status.devices if device.accuracy is not None]
    return {"accuracy": fmean(measured), "worst": min(measured)}


def figure_of(status: RunStatus, device: str) -> float | None:
    return next((figures.accuracy for figures in status.devices if figures.device == device), None)


def table_of(summary: Mapping[str, Any]) -> str:
    """The same for people."""
    fedavg, flux = summary["fedavg"], summary["flux"]
    lines = [
        f"{'device':<12}{'turned by':>10}{'cluster':>9}{'FedAvg':>9}{'FLUX':>8}",
        *(
            f"{row['device']:<12}{fleet.ANGLES[row['group']]:>9}°{row['cluster']:>9}"
            f"{100 * row['fedavg']:>9.1f}{100 * row['flux']:>8.1f}"
            for row in summary["devices"]
        ),
        "",
        f"{'accuracy, %':<20}{'all devices':>12}{'worst device':>14}",
        f"{'FedAvg, one model':<20}{100 * fedavg['accuracy']:>12.1f}{100 * fedavg['worst']:>14.1f}",
        f"{'FLUX, ' + str(flux['clusters']) + ' clusters':<20}"
        f"{100 * flux['accuracy']:>12.1f}{100 * flux['worst']:>14.1f}",
        f"clusters against the truth: ARI {flux['ari']:.2f}",
        "",
        f"{'newcomer':<12}{'cluster':>8}{'':>7}{'next':>6}{'confidence':>12}{'accuracy':>10}{'seconds':>9}",
    ]
    for place in summary["placements"]:
        verdict = "right" if place["correct"] else "WRONG"
        lines.append(
            f"{place['device']:<12}{place['cluster']:>8}{verdict:>7}"
            f"{place['runner_up']:>6}{place['confidence']:>12.2f}"
            f"{100 * place['accuracy']:>10.1f}{place['seconds']:>9.2f}"
        )
    traffic = summary["bytes_per_device_round"]
    lines += [
        "",
        f"bytes for each device and round: {traffic['up']:,} up, {traffic['down']:,} down",
        *summary["privacy"],
        f"over mutual TLS, {len(summary['certified'])} devices with certificates of their own",
        f"{summary['seconds']:.0f} s in all",
    ]
    return "\n".join(lines)
