"""`fedserver algorithm ...`: which algorithms there are, and what can be set. No server is needed."""

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from fedserver.cli.text import WIDTH, setting, table
from shoal.core.algorithm import Algorithm, Setting, discover, find, rejected
from shoal.core.algorithm.discovery import DISTRIBUTION, package_of
from shoal.shell.console import Console, Group, Result, verb


@click.group(cls=Group)
def algorithm() -> None:
    """Algorithms: list them, and show what can be set."""


@algorithm.command("ls", epilog="Example: fedserver algorithm ls --json")
@verb
@click.pass_obj
def list_(console: Console) -> Result:
    """List every algorithm and its variants, with the paper. Plug-ins that cannot be used are named."""
    cards = sorted(discover().values(), key=lambda card: card.name)
    for each in rejected():
        console.say(f"warning: {each}{f'; hint: {each.hint}' if each.hint else ''}")
    rows = []
    for card in cards:
        rows.append((card.name, card.summary))
        rows += [
            (f"  {name}", f"{card.name} with {_pairs(card, changes)}")
            for name, changes in card.variants.items()
        ]
    data = {
        "algorithms": [
            {
                "name": card.name,
                "summary": card.summary,
                "paper": card.citation,
                "variants": {name: dict(changes) for name, changes in card.variants.items()},
                "presets": ["default", *card.presets],
            }
            for card in cards
        ],
        "rejected": [asdict(each) for each in rejected()],
    }
    return Result(
        data, table(("name", "summary"), rows) + "\n\nMore about one: fedserver algorithm show NAME"
    )


@algorithm.command(epilog="Example: fedserver algorithm show flux")
@verb
@click.argument("name")
@click.option("--all", "every", is_flag=True, help="Show every parameter and preset.")
def show(name: str, every: bool) -> Result:
    """Show an algorithm: its paper, its variants, and the parameters that one may want to set.

    NAME may be a variant, whose own settings then count as the defaults.
    """
    card, variant = find(name)
    settings = card.settings
    data = {
        "name": card.name,
        "variant": name if name != card.name else "",
        "summary": card.summary,
        "paper": card.citation,
        "documentation": card.documentation,
        "package": package_of(card.name),
        "own_tasks": list(card.own_tasks),
        "variants": {each: dict(changes) for each, changes in card.variants.items()},
        "presets": {preset: dict(changes) for preset, changes in card.presets.items()},
        "parameters": [
            {
                "name": each.name,
                "type": each.type.__name__,
                "legal": each.legal,
                "unit": each.unit,
                "default": variant.get(each.name, each.default),
                "paper": _of_paper(card, each),
                "meaning": each.meaning,
                "rare": each.rare,
            }
            for each in settings.values()
        ],
    }
    return Result(data, _page(card, name, variant, every))


def _page(card: Algorithm, name: str, variant: Mapping[str, Any], every: bool) -> str:
    lines = [f"{card.name}: {card.summary}", *textwrap.wrap(card.citation, WIDTH), ""]
    if needed := needed_package(card):
        lines.append(f"devices need the package {needed}, too: it has the tasks {', '.join(card.own_tasks)}")
    if variant:
        lines.append(f"{name} is {card.name} with {_pairs(card, variant)}")
    for other, changes in card.variants.items():
        if other != name:
            lines.append(f"variant {other}: {_pairs(card, changes)}")
    for preset, changes in card.presets.items() if every else ():
        pairs = _pairs(card, changes)
        lines += textwrap.wrap(f"preset {preset}: {pairs}", WIDTH, subsequent_indent="    ")
    if card.presets and not every:
        lines.append(f"presets, set with --preset NAME: {', '.join(card.presets)}")
    lines += ["", "Parameters, set with --set NAME=VALUE:", ""]
    shown = [each for each in card.settings.values() if every or not each.rare]
    for each in shown:
        default = variant.get(each.name, each.default)
        paper = _of_paper(card, each)
        unit = f" {each.unit}" if each.unit else ""
        head = f"{each.name} = {setting(default) if each.allows(default) else 'REQUIRED'}{unit}"
        if paper is not None and paper != default:
            head += f" (paper: {setting(paper)})"
        lines.append(head)
        body = f"{each.meaning} Legal: {each.legal}."
        lines += textwrap.wrap(body, WIDTH, initial_indent="    ", subsequent_indent="    ")
    if more := len(card.settings) - len(shown):
        lines += ["", f"{more} more, for experiments: fedserver algorithm show {name} --all"]
    return "\n".join(lines)


def needed_package(card: Algorithm) -> str:
    """The package that devices need beside what every device has; "" if they need none, or if the algorithm
    was registered in this process."""
    package = package_of(card.name)
    return package if card.own_tasks and package != DISTRIBUTION else ""


def _of_paper(card: Algorithm, parameter: Setting) -> Any:
    """What the preset "paper" uses; None where there is no such preset."""
    return card.preset("paper").get(parameter.name, parameter.default) if "paper" in card.presets else None


def _pairs(card: Algorithm, changes: Mapping[str, Any]) -> str:
    """Settings as one writes them; a variant marks one that must be given by a value that is not legal."""
    settings = card.settings
    return ", ".join(
        f"{name}={setting(value) if settings[name].allows(value) else 'REQUIRED'}"
        for name, value in changes.items()
    )
