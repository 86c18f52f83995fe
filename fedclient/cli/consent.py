"""`fedclient consent`: what runs ask for without a privacy guarantee, and what their owner allows."""

import sys
from dataclasses import replace
from typing import Any

import click

from fedclient.cli.options import configured, own_options
from fedclient.config import ClientConfig
from fedclient.store.state import DeviceFolder
from shoal.shell.console import Result, printable, verb


@click.command(epilog="Examples: fedclient consent --config device.yaml; fedclient consent give RUN")
@verb
@configured("state")
@click.argument("step", type=click.Choice(["give", "revoke"]), metavar="[give|revoke]", required=False)
@click.argument("run", required=False, default="")
@click.option("--everything", is_flag=True, help="With give: also what the run has not asked for yet.")
@click.option("--unseen", is_flag=True, help="With revoke: also refuse a run that is not shown.")
def consent(settings: ClientConfig, step: str | None, run: str, everything: bool, unseen: bool) -> Result:
    """Decide, run by run, what may leave this device without a privacy guarantee.

    Shows what each run asked for without a guarantee, what you allowed, and what it has spent. Where a run
    waits for your consent, it asks you on a terminal, and says elsewhere what to type.

    With `give RUN`, RUN may have what it has asked for. Each kind is recorded in the ledger before it leaves.

    With `revoke RUN`, consent is taken back, or a run is refused that needs none. What has left cannot be
    called back; nothing more leaves, and what was reserved for RUN is free again.
    """
    if bool(step) != bool(run):
        raise click.UsageError("name a run: fedclient consent give RUN, or revoke RUN")
    if (everything and step != "give") or (unseen and step != "revoke"):
        raise click.UsageError("--everything needs give, and --unseen needs revoke")
    if step == "give":
        return _give(settings, run, everything)
    if step == "revoke":
        return _revoke(settings, run, unseen)
    return _asked(settings)


def _asked(settings: ClientConfig) -> Result:
    """What there is, and then the owner's answers, if there is someone to ask."""
    found, waiting = _show(settings), settings.consents.waiting()
    if not waiting:
        return found
    if not sys.stdin.isatty() or click.get_current_context().params.get("as_json"):
        hints = [f"to allow it: fedclient consent give {run}" for run in waiting]
        return replace(found, text="\n".join([found.text, *hints]))
    click.echo(printable(found.text), err=True)
    for run, missing in waiting.items():
        what = printable(f"may run {run} have, without a guarantee: {', '.join(missing)}?")
        if click.confirm(what, err=True):
            settings.consents.give(run)
    still = settings.consents.waiting()
    left = [f"run {run} goes on without this device" for run in still]
    allowed = [f"run {run} may have what it asked for" for run in waiting if run not in still]
    return replace(_show(settings), text="\n".join([*allowed, *left]))


def _show(settings: ClientConfig) -> Result:
    from fedclient.store.privacy_report import by_run, ledger_of

    kept, runs = settings.consents, by_run(ledger_of(settings).entries(), settings.privacy)
    spent = {run: figures["spent"] for run, figures in runs.items() if figures["spent"]}
    reserved = {run: figures["reserved"] for run, figures in runs.items() if figures["reserved"]}
    asked, given, terms, refused = kept.asked(), kept.given(), kept.terms(), kept.refused()
    rules = _rules(settings)
    words = {True: "always allowed", False: "never allowed", None: "asked for each run"}
    lines = [f"{name}: {words[rule]}" for name, rule in rules.items()]
    for run in dict.fromkeys([*terms, *asked, *given]):
        if run in terms:
            try:
                lines.append(f"run {run}: {_in_all(terms[run])}")
            except (KeyError, TypeError, ValueError):  # a damaged file is not worse than none
                lines.append(f"run {run}: what all of it asks for is not known any more")
        allowed = set(given.get(run, ()))
        for what in dict.fromkeys([*asked.get(run, {}), *sorted(allowed - {"*"})]):
            without = "refused" if run in refused else "waits for your consent"
            state = "allowed" if {what, "*"} & allowed else without
            lines.append(f"run {run}: {what}: {state}")
        if "*" in allowed:
            lines.append(f"run {run}: everything that it asks for: allowed")
    lines += [f"run {run}: epsilon {epsilon:.4g} was spent for it" for run, epsilon in spent.items()]
    lines += [f"run {run}: epsilon {epsilon:.4g} is reserved for it" for run, epsilon in reserved.items()]
    lines += [f"run {run}: you have refused it" for run in refused]
    figures = {"spent": spent, "reserved": reserved, "refused": refused}
    found = {"asked": asked, "given": given, "rules": rules, "terms": terms, **figures}
    return Result(found, "\n".join(lines))


def _rules(settings: ClientConfig) -> dict[str, bool | None]:
    """The owner's rules for all runs; None: each run asks."""
    return {name: getattr(settings.privacy, name) for name in ("allow_unprotected", "allow_plain_weights")}


def _give(settings: ClientConfig, run: str, everything: bool) -> Result:
    allowed = settings.consents.give(run, everything)
    listed = ["everything that it asks for" if what == "*" else what for what in allowed]
    lines = [f"run {run} may have: {'; '.join(listed)}"]
    lines += [
        f"but not what privacy.{name}: false in this device's settings rules out, consent or not"
        for name, rule in _rules(settings).items()
        if rule is False
    ]
    start = "" if DeviceFolder(settings.state).busy() else f", once this runs: fedclient run{own_options()}"
    lines.append(f"the run asks again within minutes{start}")
    return Result({"run": run, "given": allowed}, "\n".join(lines))


def _revoke(settings: ClientConfig, run: str, unseen: bool) -> Result:
    from fedclient.store.privacy_report import ledger_of

    try:
        settings.consents.revoke(run, unseen)
    finally:  # also where it was revoked before, and the reservation was not given back any more
        ledger_of(settings).give_back(run)
    return Result({"run": run}, f"nothing more leaves for run {run}")


def _in_all(terms: dict[str, Any]) -> str:
    """What a whole run asks for and costs, in words."""
    times = "once" if terms["lessons"] == 1 else f"{terms['lessons']} times"
    found = [f"{terms['algorithm']}, which trains {times}"]
    if terms["epsilon"]:
        found.append(
            f"all of it costs epsilon {terms['epsilon']:.4g} at delta {terms['delta']:g} "
            f"({terms['if_replaced']:.4g} where one sample is replaced by another)"
        )
    if terms["sums"]:
        found.append(
            f"its masked updates have epsilon {terms['sums']:.4g} at delta {terms['delta']:g} for all data "
            "of this device together, as long as the other devices add their noise"
        )
    opened = ", ".join(terms["opened"])
    found.append(f"without a guarantee it asks for: {opened}" if opened else "nothing else leaves")
    return "; ".join(found)
