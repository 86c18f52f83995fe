"""`fedserver conformance`: find out which rules of the contract a device keeps."""

import asyncio
import tempfile
from pathlib import Path

import click

from shoal.core.errors import DeviceFault
from shoal.shell.console import Console, Result, one_line, verb

STEPS = """1. let the device join with this line:
{line}
2. let it serve, with at least ten samples, until the server says `finished`
3. let it ask for a model, with no run named"""


@click.command(epilog="Example: fedserver conformance")
@verb
@click.pass_obj
def conformance(console: Console) -> Result:
    """Play the server for a foreign device, and say which rules of docs/protocol.md it keeps.

    The server is a real one, on this machine only and in a folder that is thrown away; what disturbs the
    device is done at its edge. The verb prints a join string, waits for the device, and then up to a minute
    for each thing that it should do. Exits with code 8 if a rule is broken.
    """
    from fedserver.conformance.situations import RULES, play
    from fedserver.conformance.stage import opened

    def say(rule: str, problem: str) -> None:
        console.progress(f"{rule}: {'broken: ' if problem else 'kept'}{problem}")

    async def run(folder: Path) -> dict[str, str]:
        async with opened(folder) as stage:
            console.say(STEPS.format(line=stage.line))
            return await play(stage, say)

    with tempfile.TemporaryDirectory(prefix="shoal-conformance-") as folder:
        found = asyncio.run(run(Path(folder)))  # on return, no thread of the server writes to the folder
    lines = [_line(rule, found.get(rule)) for rule in RULES]
    kept = [rule for rule in RULES if found.get(rule) == ""]
    broken = None
    if len(kept) < len(RULES):
        broken = DeviceFault(
            f"the device keeps {len(kept)} of {len(RULES)} rules", "docs/protocol.md has the rules"
        )
    return Result({"rules": {rule: found.get(rule) for rule in RULES}}, "\n".join(lines), broken)


def _line(rule: str, problem: str | None) -> str:
    from fedserver.conformance.situations import RULES

    if problem:
        return f"BROKEN     {rule:16} {RULES[rule]}: {one_line(problem)}"
    return f"{'kept' if problem == '' else 'not tried':10} {rule:16} {RULES[rule]}"
