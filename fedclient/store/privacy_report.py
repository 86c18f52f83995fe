"""What a device's ledger adds up to, for people and programs: what each release cost, and what is left."""

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from fedclient.config import ClientConfig
from fedclient.store.ledger import DAY, Ledger
from shoal.core.errors import LedgerFault
from shoal.core.privacy.budget import NOTHING_LEFT, Budget
from shoal.core.privacy.cost import Cost, epsilon_of
from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import (
    Debit,
    Entry,
    Failed,
    FailedBefore,
    GivenBack,
    Open,
    Release,
    Reserved,
    Summed,
    chosen,
    paid,
    spent,
    versions,
)
from shoal.core.privacy.payment import TRAINING
from shoal.core.privacy.report import NAMED, Statement, if_updates_are_others, of_weights

SHORT = 12
"""Digits of a hash that people are shown."""


def ledger_of(settings: ClientConfig) -> Ledger:
    """The ledger of this device."""
    return Ledger(settings.account, settings.privacy, consents=settings.consents)


def statement(entries: Sequence[Entry], budget: Budget, data: str | None = None) -> Statement:
    """What was released: in total, or of one version of the data."""
    left_open = [each.what for each in chosen(entries, Open) if data in (None, each.data)]
    return Statement(
        spent(entries, data),
        budget.delta,
        budget.group_size,
        tuple(dict.fromkeys(left_open)),
        len(chosen(entries, Failed)) + sum(each.times for each in chosen(entries, FailedBefore)),
        any(data in (None, each.payment.data) for each in paid(entries, TRAINING)),
    )


def facts(entries: Sequence[Entry], budget: Budget) -> dict[str, Any]:
    """The sums, for programs. left: the largest epsilon of one more release that would fit. more_from: when
    more of it is free, in seconds since 1970; None: never, or all of it is free."""
    book, now = Book.of(entries), time.time()
    since = now - DAY * budget.window_days
    reserved = book.held(since, now)

    def figures(data: str | None, of_data: Cost) -> dict[str, Any]:
        left = budget.epsilon_of(Cost(budget.left(of_data, book.spent, reserved=reserved)))
        found = statement(entries, budget, data)
        return {**found.facts(), "detailed": found.of_both_neighbors, "left": left}

    sources = {each.payment.data: each.source for each in paid(entries)}

    def recent(data: str) -> Cost:
        return book.within(sources.get(data, ""), since, now)

    def more_from(data: str) -> float | None:
        counted = [at for at, _ in book.recent(sources.get(data, ""), since, now)]
        lasting = budget.epsilon_of(Cost(budget.left(Cost(), book.spent, reserved=reserved)))
        return min(counted) + DAY * budget.window_days if counted and lasting > NOTHING_LEFT else None

    return {
        "total": figures(None, Cost()),
        "data": {
            data: {**figures(data, recent(data)), "more_from": more_from(data)} for data in versions(entries)
        },
        "weights": of_weights([statement(entries, budget)]),
        "sums": sums_by_run(entries, budget),
        "runs": by_run(entries, budget),
    }


def by_run(entries: Sequence[Entry], budget: Budget) -> dict[str, dict[str, float]]:
    """For each run, at the owner's delta: spent, the epsilon that it has spent; reserved, what it has
    reserved and not yet spent."""
    book, now = Book.of(entries), time.time()
    window = now - DAY * budget.window_days, now
    return {
        run: {
            "spent": budget.epsilon_of(book.of_run(run)),
            "reserved": budget.epsilon_of(book.held_for(run, *window)),
        }
        for run in book.runs
    }


def sums_by_run(entries: Sequence[Entry], budget: Budget) -> dict[str, dict[str, Any]]:
    """What each run learned by secure aggregation. fewest: devices in a sum. epsilon: of all samples of this
    device together, as long as the other devices add their noise; None where a sum has no noise."""
    runs = dict.fromkeys(each.run for each in chosen(entries, Summed))
    found = {}
    for run in runs:
        own = [each for each in chosen(entries, Summed) if each.run == run]
        rho = sum(each.rho for each in own)
        noised = rho < math.inf
        found[run] = {
            "updates": len(own),
            "fewest": min(each.update.fewest for each in own),
            "epsilon": epsilon_of(rho, budget.delta) if noised else None,
            "if_others": if_updates_are_others(rho, budget.delta) if noised else None,
        }
    return found


def summary(settings: ClientConfig) -> dict[str, Any]:
    """The sums of this device; if its ledger is damaged, the reason instead of any number."""
    try:
        return facts(ledger_of(settings).entries(), settings.privacy)
    except LedgerFault as fault:
        return {"fault": fault.message}


def line(found: Mapping[str, Any]) -> str:
    """What `summary` returns, as one line."""
    if "fault" in found:
        return f"unknown: {found['fault']}"
    total, weights = found["total"], found["weights"]
    return total["detailed"] if weights in NAMED else f"{total['detailed']}; {weights}"


def rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Every debit and everything that left without a guarantee, oldest first, for programs.

    release: SHA-256 of what was released; None if a crash lost it.
    """
    kept = {each.debit: each.release for each in chosen(entries, Release)}
    return [
        asdict(each) | ({"release": kept.get(each.number)} if isinstance(each, Debit) else {})
        for each in entries
        if not isinstance(each, Release)
    ]


def text(entries: Sequence[Entry], budget: Budget) -> str:
    """All of it for people."""
    found = facts(entries, budget)
    kept = {each.debit for each in chosen(entries, Release)}
    lines = []
    for _, (each, *same) in groupby(entries, _alike):
        if isinstance(each, Failed):
            others = chosen(same, Failed)
            what = f"{1 + len(others)} tasks, until {_clock(others[-1].at)}," if others else "a task"
            lines.append(
                f"{_clock(each.at)}  run {each.run}  {what} failed: the server learned {each.code!r}"
            )
        elif isinstance(each, FailedBefore):
            lines.append(f"{each.times} tasks failed then, which are only counted; the newest follow")
        elif isinstance(each, Summed):
            lines.append(f"{_clock(each.at)}  data {each.update.data[:SHORT]}  {_summed(each)}")
        elif isinstance(each, Reserved):
            of_all = f"epsilon {budget.epsilon_of(each.cost):.4g} is reserved for all of it"
            lines.append(f"{_clock(each.at)}  run {each.run}  {of_all}")
        elif isinstance(each, GivenBack):
            lines.append(f"{_clock(each.at)}  run {each.run}  what it has not spent is free again")
        elif isinstance(each, Open):
            lines.append(f"{_clock(each.at)}  data {each.data[:SHORT]}  {each.what}: no guarantee")
        elif isinstance(each, Debit):
            lines.append(f"{_clock(each.at)}  data {each.payment.data[:SHORT]}  {_paid(each, budget, kept)}")
    for data, figures in found["data"].items():
        more = f", and more from {_clock(figures['more_from'])} on" if figures["more_from"] else ""
        lines.append(f"data {data[:SHORT]}: {figures['detailed']}; {figures['left']:.4g} is left{more}")
    lines += [_sums(run, figures, budget) for run, figures in found["sums"].items()]
    lines += [
        f"run {run}: epsilon {figures['reserved']:.4g} is reserved for it, and no other run can spend that"
        for run, figures in found["runs"].items()
        if figures["reserved"]
    ]
    total = found["total"]
    left = f"{total['left']:.4g} is left in all"
    lines.append(f"in total: {total['detailed']}; {left}")
    return "\n".join([*lines, found["weights"]])


def _alike(each: Entry) -> object:
    """What is the same of entries that people see in one line: a run asks again what is refused."""
    return (each.run, each.code) if isinstance(each, Failed) else id(each)


def _summed(each: Summed) -> str:
    sent = each.update
    noise = f", with noise of {sent.noise:g} times that in the sum" if sent.noise else ""
    return (
        f"run {each.run}  a masked update of norm {sent.clip:g} at most{noise}: the server learns a sum over "
        f"{sent.fewest} to {sent.devices} devices"
    )


def _sums(run: str, figures: Mapping[str, Any], budget: Budget) -> str:
    updates = "1 masked update" if figures["updates"] == 1 else f"{figures['updates']} masked updates"
    if figures["epsilon"] is None:
        return f"run {run}: {updates}; the sums over at least {figures['fewest']} devices have no noise"
    return (
        f"run {run}: {updates}; epsilon {figures['epsilon']:.4g} at delta {budget.delta:g} for all data of "
        f"this device together ({figures['if_others']:.4g} where they are others), as long as the other "
        "devices add their noise"
    )


def _paid(each: Debit, budget: Budget, kept: Container[int]) -> str:
    paid_for = each.payment
    asked = ", ".join(
        f"{name} {fact:.4g}" if isinstance(fact, float) else f"{name} {fact}"
        for name, fact in paid_for.facts.items()
    )
    lost = "" if each.number in kept else "; not finished, so nothing was released"
    return f"{paid_for.kind}: epsilon {budget.epsilon_of(paid_for.cost):.4g} (asked: {asked}){lost}"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
