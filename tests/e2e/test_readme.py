"""README, as it is typed. Its Python prints what README shows. Its five minutes are typed twice in a row, and
then a run with other settings: no device is refused for want of budget, and its ledger has paid once. Real
processes, over mutual TLS."""

import re
from pathlib import Path

from tests.e2e.pages import Machine, at_free_ports, blocks, typed_on

PAGE = "README.md"


def without_figures(text: str) -> list[str]:
    """The lines of what was printed, whatever the processor makes of the numbers, and how wide they are."""
    return [" ".join(re.sub(r"[+-]?\d[\d.]*", "#", line).split()) for line in text.strip().splitlines()]


def test_ten_lines_of_python_print_what_the_page_shows(tmp_path: Path, programs: Path) -> None:
    (python,), (shown,) = blocks(PAGE, "python"), blocks(PAGE, "text")
    assert len(python.splitlines()) <= 10
    printed = Machine(tmp_path, tmp_path / "server", programs).runs(python)
    assert without_figures(printed) == without_figures(shown)
    gain = re.search(r"flux gains \+([\d.]+) .* over one model for all", printed)
    assert gain is not None
    assert float(gain[1]) > 5


def test_a_fleet_runs_again_and_again_on_what_it_paid_once(tmp_path: Path, programs: Path) -> None:
    init, start = typed_on(PAGE, "the server")
    (device,) = typed_on(PAGE, "the device attic")
    state = tmp_path / "server"
    server, attic = (Machine(tmp_path / name, state, programs) for name in ("the-server", "attic"))
    server.types(at_free_ports(re.sub(r"(?m)^fedserver up .*$", "", init)))
    with server.serves():
        assert "each device pays epsilon 5 for a description of its data" in server.types(start)
        joins = device.replace("fedclient join -", "fedserver token create | fedclient join -")
        attic.types(re.sub(r"(?m)^pip .*$", "", joins))
        once, again = device.splitlines()[-1], start.splitlines()[1]
        assert once.startswith("fedclient run ")
        assert again.split("#")[0].strip() == "fedserver run start digits"
        models = [server.reads("fedserver run show digits")["models"]]
        for name, settings in (("second", ""), ("third", "--set rounds=12 --set learning_rate=0.1")):
            printed = server.types(f"fedserver run start {name} {settings}")
            assert (
                "1 of 1 devices have described their data in an earlier run, which is not paid again"
                in printed
            )
            attic.types(once)
            found = server.reads(f"fedserver run show {name}")
            assert found["stage"] == "finished"
            models.append(found["models"])
            ledger = attic.reads("fedclient ledger --config device.yaml")
            paid = [each for each in ledger["entries"] if each.get("payment", {}).get("kind") == "descriptor"]
            assert [(each["run"], each["payment"]["facts"]["epsilon"]) for each in paid] == [("digits", 5.0)]
            assert ledger["runs"].keys() == {"digits"}, "nothing is spent or reserved for the others"
        assert models[0] == models[1] != models[2], "the same settings give the same model, to the bit"
