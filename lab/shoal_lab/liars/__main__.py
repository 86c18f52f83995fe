"""Try ten attacks by one device on every algorithm, and write the table: python -m shoal_lab.liars."""

import argparse
import sys
from pathlib import Path

from shoal.simulation.simulated import on_threads
from shoal_lab.liars.attacks import ATTACKS
from shoal_lab.liars.campaign import SIZES, cases, names, play
from shoal_lab.liars.page import page


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="liars", description=__doc__)
    parser.add_argument("--algorithms", default=",".join(names()), help="which ones, separated by commas")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="sizes of the liar's cluster")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="which attacks, separated by commas")
    parser.add_argument("--seeds", default="101", help="seeds, separated by commas")
    parser.add_argument("--log", type=Path, default=Path("runs/liars.jsonl"), help="finished trials")
    parser.add_argument("--out", type=Path, default=Path("docs/liars.md"), help="the page")
    given = parser.parse_args()
    sizes, seeds = ([int(each) for each in text.split(",")] for text in (given.sizes, given.seeds))
    with on_threads(1):
        wanted = cases(given.algorithms.split(","), sizes, given.attacks.split(","), seeds)
        known = play(wanted, given.log, _say)
    given.out.write_text(page(known))
    sys.stdout.write(f"{len(known)} trials: {given.out}\n")


if __name__ == "__main__":
    main()
