"""What the detectors find of planted faults, with templates that they were not tuned to."""

from collections import Counter

import pytest

from memalpha.contrib.audit.run import DETECTORS, audit_namespace, over_time
from memalpha.contrib.audit.view import NamespaceView
from memalpha.store.journal import IN_MEMORY, Journal
from tests.helpers import audit_held_out as held_out
from tests.helpers import audit_tuned as tuned
from tests.helpers.audit_planted import plant

pytest.importorskip("detect_secrets", reason="needs the extra audit")


@pytest.fixture
def journal():
    with Journal.open(IN_MEMORY) as journal:
        yield journal


def measure(journal, namespaces):
    """By kind: faults planted and found, findings right and wrong. Right is a finding of its kind
    on an entry of the fault, or on a line of its chunk."""
    counts = {kind: Counter() for kind in DETECTORS}
    for planted in namespaces:
        durable = journal.memory(planted.namespace, journal.schema(planted.namespace))
        view = NamespaceView.of(durable.history())
        chunk_of = {entry.id: entry.source_chunk for entry in view.entries}
        found = set()
        for finding in audit_namespace(view, DETECTORS).findings:
            ids = {finding.entry.id}
            if finding.entry.section == "_archive":
                ids = {key for key, at in chunk_of.items() if at == finding.entry.source_chunk}
            right = [
                place
                for place, (kind, entries) in enumerate(planted.faults)
                if kind == finding.kind and ids & entries
            ]
            counts[finding.kind]["right" if right else "wrong"] += 1
            found.update(right)
        for place, (kind, _) in enumerate(planted.faults):
            counts[kind].update(["planted", *(["found"] if place in found else [])])
    return counts


def test_faults_of_unseen_templates_are_found_and_clean_entries_are_left_alone(journal):
    counts = measure(journal, plant(journal, held_out, 6))
    total = sum(counts.values(), Counter())
    assert total["found"] / total["planted"] >= 0.9, counts
    assert total["right"] / (total["right"] + total["wrong"]) >= 0.8, counts
    assert {kind for kind, count in counts.items() if count["planted"]} == set(DETECTORS)


@pytest.mark.slow
@pytest.mark.parametrize("half", [tuned, held_out], ids=["tuned", "held_out"])
def test_the_whole_of_a_half(journal, half):
    """286 faults and 2,000 clean entries; -s shows the counts."""
    namespaces = plant(journal, half, 22)
    assert sum(len(each.clean) for each in namespaces) >= 2000
    counts = measure(journal, namespaces)
    for kind, count in counts.items():
        print(kind, dict(count))
    total = sum(counts.values(), Counter())
    assert total["planted"] >= 200
    assert total["found"] / total["planted"] >= 0.9
    assert total["right"] / (total["right"] + total["wrong"]) >= 0.8


def test_counts_over_time_are_those_of_the_memory_as_it_was(journal):
    (planted,) = plant(journal, held_out, 1)
    durable = journal.memory(planted.namespace, journal.schema(planted.namespace))
    events = durable.history()
    moments = over_time(events, DETECTORS, 4)
    assert [each.operation for each in moments][-1] == len(events) and len(moments) == 4
    for moment in moments:
        assert moment.entries == len(durable.as_of(moment.operation))
    assert moments[-1].counts == audit_namespace(NamespaceView.of(events), DETECTORS).counts
