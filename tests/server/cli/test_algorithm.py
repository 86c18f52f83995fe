"""`fedserver algorithm`: what there is and what can be set, without a server, PyTorch or scikit-learn."""

import json
import subprocess
import sys

from click.testing import CliRunner

from fedserver.__main__ import main
from shoal.core.algorithm import discover


def shown(*arguments: str) -> dict:
    result = CliRunner().invoke(main, ["algorithm", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["data"]


def test_ls_has_every_algorithm_and_variant_with_its_paper() -> None:
    found = {each["name"]: each for each in shown("ls")["algorithms"]}
    assert set(found) == set(discover())
    assert found["flux"]["paper"].startswith("Fenoglio et al.")
    assert set(found["flux"]["variants"]) == {"flux-prior", "flux-soft", "flux-dynamic"}
    text = CliRunner().invoke(main, ["algorithm", "ls"]).stdout
    assert all(name in text for name in ("flux-soft", "fedrc-adam", "ifca"))


def test_show_says_of_every_parameter_what_is_legal_the_default_and_the_papers() -> None:
    found = {each["name"]: each for each in shown("show", "flux-soft")["parameters"]}
    assert set(found) == set(discover()["flux"].settings)
    assert all(each["meaning"] for each in found.values())
    assert found["mixing"] == {
        "name": "mixing",
        "type": "str",
        "legal": "hard or soft",
        "unit": "",
        "default": "soft",
        "paper": "hard",
        "meaning": discover()["flux"].settings["mixing"].meaning,
        "rare": True,
    }
    assert (found["watch"]["unit"], found["watch"]["legal"]) == ("rounds", "a whole number of at least 0")
    text = CliRunner().invoke(main, ["algorithm", "show", "flux-prior"]).stdout
    assert "clusters = REQUIRED clusters" in text
    assert "grouping" not in text
    text = CliRunner().invoke(main, ["algorithm", "show", "flux-prior", "--all"]).stdout
    assert "grouping = likelihood (paper: density)" in text


def test_an_unknown_name_is_refused_with_a_hint() -> None:
    result = CliRunner().invoke(main, ["algorithm", "show", "fluxx", "--json"])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["hint"] == 'did you mean "flux"?'


def test_neither_pytorch_nor_scikit_learn_is_loaded() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from fedserver.__main__ import main\n"
        "for verb in (['ls'], ['show', 'flux']):\n"
        "    assert CliRunner().invoke(main, ['algorithm', *verb]).exit_code == 0\n"
        "print([name for name in ('torch', 'sklearn', 'scipy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
