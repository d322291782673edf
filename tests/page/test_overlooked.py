"""What the page says of missed structures and false alarms."""

from __future__ import annotations

from fedshift.page.behind_means import Overlooked, overlooked_light, overlooked_sentences

STRUCTURES = ("structures", "are missed")
ALARMS = ("masks without a structure", "have a false alarm")


def count(words: tuple[str, str], sites: dict[str, tuple[int, int]], inference: str = "Source") -> Overlooked:
    return Overlooked("FedAvg, local BN", inference, *words, sites)


def test_sites_where_structures_are_missed_are_named_with_their_counts() -> None:
    counted = [count(STRUCTURES, {"a": (0, 9), "b": (3, 9), "c": (2, 8)}), count(ALARMS, {"a": (0, 4), "b": (0, 0)})]
    assert list(overlooked_sentences(counted, "patients")) == [
        "With FedAvg, local BN and Source, 3 of 9 structures are missed at b and 2 of 8 at c (patients and trainings "
        "added up).",
        "None of 4 masks without a structure have a false alarm (patients, trainings and inferences added up).",
    ]
    lamp = overlooked_light(counted)
    assert lamp
    assert (lamp.status, lamp.name) == ("suspect", "Missed structures")
    assert lamp.detail == "3 of 9 structures are missed at b and 2 of 8 at c (FedAvg, local BN, Source)"


def test_the_largest_shares_come_first_and_further_ones_are_counted() -> None:
    counted = [count(STRUCTURES, {"a": (k, 10)}, f"i{k}") for k in range(8)]
    said = list(overlooked_sentences(counted, "images"))
    assert [text.split(" of 10")[0][-1] for text in said[:-1]] == ["7", "6", "5", "4", "3"]
    assert said[-1] == "With 2 further pairs of condition and inference, structures are missed, too."


def test_where_every_patient_has_the_structure_nothing_is_said_of_false_alarms() -> None:
    assert list(overlooked_sentences([count(ALARMS, {"a": (0, 0)})], "patients")) == []


def test_without_a_miss_the_light_is_ok_and_classification_has_none() -> None:
    lamp = overlooked_light([count(STRUCTURES, {"a": (0, 9)})])
    assert lamp
    assert (lamp.status, lamp.detail) == ("ok", "none of 9 structures are missed")
    assert overlooked_light([]) is None


def test_a_light_says_what_was_counted_nowhere() -> None:
    """Where every patient has the structure, nobody knows of false alarms."""
    lamp = overlooked_light([count(STRUCTURES, {"a": (0, 9)}), count(ALARMS, {"a": (0, 0)})])
    assert lamp
    assert lamp.detail == "none of 9 structures are missed; there were no masks without a structure"
    unknown = overlooked_light([count(STRUCTURES, {"a": (0, 0)})])
    assert unknown and unknown.status == "unknown"
