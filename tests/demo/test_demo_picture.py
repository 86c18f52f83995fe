"""The picture of the demo is drawn only from its summary."""

from pathlib import Path

import pytest


def row(number: int) -> dict[str, object]:
    cluster = f"c{(number - 1) % 4}"
    return {"device": f"device-{number}", "cluster": cluster, "fedavg": 0.7, "flux": 0.9}


def test_every_device_and_newcomer_has_a_bar_of_its_length(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    from shoal.demo.picture import draw

    summary = {
        "fedavg": {"accuracy": 0.7},
        "flux": {"accuracy": 0.9},
        "devices": [row(number) for number in range(1, 9)],
        "placements": [
            {"device": f"newcomer-{number}", "cluster": f"c{number}", "accuracy": 0.5} for number in (1, 2)
        ],
    }
    draw(summary, tmp_path / "demo.png")
    with Image.open(tmp_path / "demo.png") as image:
        assert image.size[0] > 900
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20) or []}
    assert {(0x1B, 0x6C, 0xA8), (0xD1, 0x60, 0x3D), (0x4A, 0x8F, 0x5C), (0x8A, 0x5A, 0x9E)} <= colors
