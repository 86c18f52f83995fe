"""The guide, from top to bottom, as it is typed on one machine: a notebook, a server, four devices, and one
without labels. Real processes, over mutual TLS."""

from pathlib import Path

from tests.e2e.pages import Machine, at_free_ports, blocks, typed_on

PAGE = "docs/guide.md"


def test_the_way_from_a_notebook_to_a_fleet(tmp_path: Path, programs: Path) -> None:
    here = Machine(tmp_path, tmp_path / "server", programs)
    learner, init, *then = typed_on(PAGE, "this machine")
    here.types(learner)
    here.types(at_free_ports(init))
    printed = here.runs("\n".join(blocks(PAGE, "python")))
    assert "flux: 2 clusters of 4 devices" in printed
    assert "('ill', 'well')" in printed
    with here.serves():
        for block in then:
            here.types(block)
        clusters = here.reads("fedserver run show digits")["clusters"]
        assert sorted(map(sorted, clusters.values())) == [["ward-0", "ward-2"], ["ward-1", "ward-3"]]
        assert here.reads("fedserver run show again")["stage"] == "finished"
    for file in ("own.csv", "classes.csv", "c0.onnx", "c0.md", "fleet/run.yaml"):
        assert (tmp_path / file).exists()
