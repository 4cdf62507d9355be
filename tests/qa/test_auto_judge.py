"""The judge of mixed data gives each instance the verdicts of the judge it belongs to."""

from memalpha.data.synthetic import PRESETS, generate
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import WriteRequest
from memalpha.qa.judges import AutoContentJudge, FactContentJudge, GroundedContentJudge
from memalpha.types import Operation, OperationKind


def request(instance_id, chunk, content):
    memory = Memory(MemorySchema.load("facts"))
    result = memory.apply(Operation(OperationKind.INSERT, "facts", content), chunk=0, time=None)
    return WriteRequest(instance_id, 0, chunk, (result,), (None,), ())


def test_each_instance_has_its_judge():
    (instance,) = generate(1, 3, PRESETS["small"])
    fact = next(fact for fact in instance.facts if fact.chunk == 0)
    other = next(line.split(":")[0] for line in instance.chunks[0].text.splitlines() if not line.startswith(fact.subject))
    true, mixed = (
        f"{fact.subject} {fact.attribute} {fact.value}",
        f"{other} {fact.value}",
    )  # the words are there, the person is wrong
    facts = {instance.id: instance.facts}
    asked = [request(name, instance.chunks[0], text) for name in (instance.id, "plain") for text in (true, mixed)]
    assert AutoContentJudge(facts).judge(asked) == [[True], [False], [True], [True]]
    assert FactContentJudge(facts).judge(asked[:2]) == [[True], [False]]
    assert GroundedContentJudge().judge(asked[2:]) == [[True], [True]]
    assert [AutoContentJudge(facts).nothing_due(each) for each in asked] == [False, False, None, None]
