"""Links are good once and for a while, and sessions only for what they were signed for."""

import pytest

from fedserver.page.access import KEY_BYTES, LINK_SECONDS, SESSION_SECONDS, Access

KEY = bytes(range(KEY_BYTES))
NOW = 1_800_000_000.0


def access(key: bytes = KEY, start: str = "a") -> Access:
    return Access(key, start)


def test_a_link_is_traded_once_for_a_session_that_admits() -> None:
    page = access()
    link = page.link(NOW)
    session = page.trade(link, NOW + 1.0)
    assert session is not None
    assert page.admits(session, NOW + 2.0)
    assert page.trade(link, NOW + 3.0) is None


def test_links_and_sessions_end() -> None:
    page = access()
    session = page.trade(page.link(NOW), NOW)
    assert session is not None
    assert page.trade(page.link(NOW), NOW + LINK_SECONDS) is None
    assert page.admits(session, NOW + SESSION_SECONDS - 1.0)
    assert not page.admits(session, NOW + SESSION_SECONDS)


def test_another_process_of_the_page_takes_sessions_and_no_links() -> None:
    first, second = access(start="a"), access(start="b")
    session = first.trade(first.link(NOW), NOW)
    assert session is not None
    assert second.admits(session, NOW)
    assert second.trade(first.link(NOW), NOW) is None


def test_another_key_signs_nothing_that_is_valid_here() -> None:
    page, forger = access(), access(key=b"x" * KEY_BYTES)
    session = forger.trade(forger.link(NOW), NOW)
    assert session is not None
    assert not page.admits(session, NOW)
    assert page.trade(forger.link(NOW), NOW) is None


def test_a_link_is_no_session_and_a_session_no_link() -> None:
    page = access()
    session = page.trade(page.link(NOW), NOW)
    assert session is not None
    assert not page.admits(page.link(NOW), NOW)
    assert page.trade(session, NOW) is None


@pytest.mark.parametrize("end", ["", "later", "9" * 40, "-1", "1.5", "\u0661"])
def test_a_text_that_is_not_ours_admits_no_one(end: str) -> None:
    page = access()
    _, nonce, mac = page.link(NOW).split(".")
    for forged in (end, f"{end}.{nonce}.{mac}", f"{end}..", f"{end}.\u00e9.\u20ac"):
        assert not page.admits(forged, NOW)
        assert page.trade(forged, NOW) is None


def test_what_was_used_is_forgotten_once_it_would_have_ended() -> None:
    page = access()
    for second in range(100):
        page.trade(page.link(NOW + 10.0 * second), NOW + 10.0 * second)
    assert len(page.used) <= LINK_SECONDS / 10.0 + 1
