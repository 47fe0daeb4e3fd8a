"""What a table shows where there is little room: who and how always, the rest in its order of importance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw.admin.fit import Layout, fit, kept

LAYOUT = Layout(prose="WHY", spare=("PID", "ENGINE"), scarce=("AGE", "WHY", "NODE"))
NEEDS = {"ID": 10, "NODE": 5, "STATE": 5, "AGE": 3, "PID": 5, "ENGINE": 8, "WHY": 40}


def shown(room: int, needs: dict[str, int] = NEEDS, empty: tuple[str, ...] = ()) -> dict[str, int]:
    return fit(needs, LAYOUT, room, empty=empty, gap=2, least=16)


def test_columns_are_given_up_in_order_until_the_rest_has_room() -> None:
    needs = {"A": 4, "B": 4, "C": 4}
    assert kept(needs, ("C", "B"), 12) == ("A", "B", "C")
    assert kept(needs, ("C", "B"), 11) == ("A", "B")
    assert kept(needs, ("C", "B"), 7) == ("A",)
    assert kept(needs, ("C", "B"), 1) == ("A",)
    assert kept(needs, ("no such", "C"), 11) == ("A", "B")


def test_with_room_for_all_all_is_shown_whole() -> None:
    assert shown(sum(NEEDS.values()) + 12) == NEEDS


def test_the_end_of_a_sentence_is_worth_a_pid_its_beginning_an_age_and_a_node_is_worth_more() -> None:
    assert list(shown(87)) == ["ID", "NODE", "STATE", "AGE", "ENGINE", "WHY"]
    assert shown(60) == {"ID": 10, "NODE": 5, "STATE": 5, "AGE": 3, "WHY": 29}
    assert shown(46) == {"ID": 10, "NODE": 5, "STATE": 5, "WHY": 20}
    assert list(shown(40)) == ["ID", "NODE", "STATE", "AGE"], "what fits beside the rest comes back"
    assert list(shown(24)) == ["ID", "NODE", "STATE"]
    assert list(shown(23)) == ["ID", "STATE", "AGE"]
    assert shown(5) == {"ID": 10, "STATE": 5}, "who and how are never cut"


def test_a_column_that_says_nothing_goes_before_one_that_says_something() -> None:
    needs = {**NEEDS, "WHY": 3}
    assert list(shown(sum(needs.values()) + 12, needs, empty=("WHY",))) == list(needs)
    assert list(shown(sum(needs.values()) + 11, needs, empty=("WHY",))) == [name for name in needs if name != "WHY"]
    assert list(shown(24, needs, empty=("WHY",))) == ["ID", "NODE", "STATE"]


@given(st.fixed_dictionaries({name: st.integers(1, 60) for name in NEEDS}), st.integers(1, 250))
def test_it_never_takes_more_room_than_there_is_but_for_who_and_how(needs: dict[str, int], room: int) -> None:
    found = shown(room, needs)
    assert list(found) == [name for name in needs if name in found]
    assert all(width == needs[name] for name, width in found.items() if name != "WHY")
    taken = sum(found.values()) + 2 * (len(found) - 1)
    assert taken <= room or set(found) == {"ID", "STATE"}
