"""From a notebook to a fleet and back: what a simulation deploys trains the same models over gRPC, bit for
bit, and they come back as a signed folder, as ONNX and as a module."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from safetensors.numpy import load_file

import shoal
from shoal.core.device_kit.learner import Learner
from shoal.core.errors import ConfigError
from shoal.core.exchange.tensors import digest
from tests.api.wards import SMALL, Net, fleet, ward
from tests.e2e.places import Place
from tests.waiting import HANG

RULES = "privacy: {allow_unprotected: true, allow_plain_weights: true}\n"
CLOSE = 1e-5


def test_a_simulation_is_deployed_and_the_fleet_trains_the_same_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wards = fleet(3)
    result = shoal.simulate("flux", wards, model=Net, latent="hidden", rounds=3, privacy="off", **SMALL)
    deployed = result.deploy(tmp_path / "fleet")
    said = capsys.readouterr().out
    assert f"fedserver run start --file {deployed / 'run.yaml'}" in said
    assert sorted(each.name for each in deployed.iterdir()) == [
        "device.yaml", "graph.onnx", "learner.py", "run.yaml", "weights.safetensors",
    ]  # fmt: skip
    place = Place(tmp_path)
    with place.up(), ExitStack() as stack:
        place.server("run", "start", "--file", deployed / "run.yaml")
        devices = []
        for name, own in wards.items():
            folder = tmp_path / name
            shutil.copytree(deployed, folder, ignore=shutil.ignore_patterns("run.yaml", "*.safetensors"))
            train, test = own.stage(0), own.test
            np.savez(folder / "data.npz", x=train.x, y=train.y, x_test=test.x, y_test=test.y)
            settings = folder / "device.yaml"
            settings.write_text(settings.read_text() + RULES)
            line = place.server("token", "create")["join"]
            done = place.call("fedclient", "join", "-", "-c", settings, "--device", name, given=line)
            assert done.returncode == 0, done.stderr
            line_of = ("fedclient", "run", "-c", settings, "--until-finished")
            devices.append(stack.enter_context(place.running(name, *line_of)))
        for device in devices:
            assert device.wait(HANG) == 0
        place.server("release", "create", "flux", "v1")
        place.server("release", "use", "flux@v1")
        with shoal.Client(place.state) as client:
            stable = client.release("stable", model=deployed / "learner.py")
            models = {key: digest(model) for key, model in stable.models.items()}
            assert models == {key: digest(model) for key, model in result.models.items()}
            assert dict(stable.clusters) == dict(result.clusters)
            folder = stable.download(tmp_path / "back")
            x = ward(7)[0]
            for key, model in stable.models.items():
                in_torch = stable.module(key)(torch.from_numpy(x)).detach().numpy()
                file = onnxruntime.InferenceSession(folder / key / "model.onnx")
                for session in (stable.session(key), result.session(key), file):
                    assert np.abs(session.run(["scores"], {"x": x})[0] - in_torch).max() < CLOSE
                assert digest(load_file(folder / key / "model.safetensors")) == digest(
                    dict(sorted(model.items()))
                )
                assert yaml.safe_load((folder / key / "MLmodel").read_text())["flavors"].keys() == {
                    "onnx", "python_function",
                }  # fmt: skip
    assert {"release.json", "release.sig", "authority.pem", "graph.onnx", "README.md"} < {
        each.name for each in folder.iterdir()
    }
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    _, head, _ = (folder / "README.md").read_text().split("---\n", 2)
    (index,) = yaml.safe_load(head)["model-index"]
    figures = {each["task"]["name"]: each["metrics"][0]["value"] for each in index["results"]}
    config = json.loads((folder / "config.json").read_text())["clusters"]
    assert figures == {f"cluster {key}": round(one["accuracy"], 4) for key, one in config.items()}


def test_a_network_without_a_text_is_not_deployed(tmp_path: Path) -> None:
    for model in (Net(), Learner("net", lambda: Net())):
        with pytest.raises(ConfigError) as fault:
            shoal.simulate("fedavg", fleet(2), model=model, rounds=1, **SMALL).deploy(tmp_path / "fleet")
        assert "learner.py" in fault.value.hint
        assert not (tmp_path / "fleet" / "run.yaml").exists()


def test_what_a_network_uses_comes_along_and_nothing_else(tmp_path: Path) -> None:
    """As from a notebook, whose names are those of one module."""
    script = tmp_path / "notebook.py"
    script.write_text(
        "import numpy as np\nimport shoal\nfrom torch import nn\nimport torch.nn.functional as F\n"
        "WIDTH = 5\nSECRET = np.zeros(3)\nx = SECRET\n"
        "def hidden():\n    return nn.Linear(4, WIDTH)\n"
        "class Base(nn.Module):\n    pass\n"
        "class Mine(Base):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.first, self.head = hidden(), nn.Linear(WIDTH, 2)\n"
        "    def forward(self, x):\n        return self.head(F.relu(self.first(x)))\n"
        "def half(model, x):\n    return model.first(x)\n"
        "class Wards:\n    pass\n"
        "if __name__ == '__main__':\n"
        "    fleet = {name: (np.eye(4)[[0, 1] * 9], [0, 1] * 9) for name in 'ab'}\n"
        "    shoal.simulate('fedavg', fleet, model=Mine, latent=half, rounds=1).deploy('out')\n"
    )
    done = Place(tmp_path).call("notebook")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out" / "learner.py").read_text()
    assert "SECRET" not in text
    assert "Wards" not in text
    assert text.index("WIDTH = 5") < text.index("def hidden") < text.index("class Mine")
    assert "latent = half" in text
