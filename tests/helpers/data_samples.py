"""A small valid file of every set, made up here in its published form."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from memalpha.data.chunks import count_words_and_signs
from memalpha.data.load import get_source
from memalpha.data.rows import instance_to_json
from memalpha.data.source import Tally
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import MemorySchema
from memalpha.types import Instance, OperationResult


class Sample(NamedTuple):
    """A source's input: what to give it, the file that may be damaged, and how many questions stand
    there."""

    path: Path
    file: Path
    options: dict[str, Any]
    asked: int


def write(path: Path, data: Any) -> Path:
    if path.suffix == ".jsonl":
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in data)
    text = data if isinstance(data, str) else json.dumps(data)
    path.write_text(text, encoding="latin-1" if data is TREC else "utf-8")
    return path


def write_instances(path: Path, instances: Iterable[Instance]) -> Path:
    """JSON Lines of instances that ``read_instances`` reads."""
    return write(path, [instance_to_json(instance) for instance in instances])


def one(path: Path, asked: int, **options: Any) -> Sample:
    return Sample(path, path, options, asked)


# ------------------------------------------------------------------------------------------------
# questions with articles
def hotpot_row(number: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "_id": f"h{number}",
        "type": "bridge",
        "level": "easy",
        "answer": f"River {number}",
        "question": f"Which river runs by the birthplace of painter {number}?",
        "supporting_facts": [[f"Painter {number}", 0], [f"Town {number}", 1]],
        "context": [
            [f"Noise {number}", ["Nothing of use here.", " Nor here."]],
            [
                f"Painter {number}",
                [f"Painter {number} was born in Town {number}.", " He painted cows."],
            ],
            [f"Town {number}", ["It is old.", f" River {number} runs by it."]],
        ],
    } | changed


def musique_row(number: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "id": f"3hop1__{number}_{number}",
        "paragraphs": [
            {
                "idx": 0,
                "title": "Noise",
                "paragraph_text": "Nothing of use here.",
                "is_supporting": False,
            },
            {
                "idx": 1,
                "title": f"Lake {number}",
                "paragraph_text": f"Lake {number} lies in Land {number}.",
                "is_supporting": True,
            },
        ],
        "question": f"In which land does lake {number} lie?",
        "answer": f"Land {number}",
        "answer_aliases": [f"the Land {number}"],
        "answerable": True,
    } | changed


def squad(folder: Path) -> Sample:
    paragraphs = [
        {
            "context": f"City {n} has {n} gates.",
            "qas": [
                {
                    "id": f"s{n}",
                    "question": f"How many gates has city {n}?",
                    "answers": [{"text": str(n), "answer_start": 11}],
                }
            ],
        }
        for n in range(3)
    ]
    return one(
        write(
            folder / "squad.json",
            {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]},
        ),
        3,
    )


# ------------------------------------------------------------------------------------------------
# dialogues
def longmemeval_item(name: str = "q1", **changed: Any) -> dict[str, Any]:
    return {
        "question_id": name,
        "question_type": "single-session-user",
        "question": "What instrument did I buy?",
        "answer": "a cello",
        "question_date": "2023/06/01 (Thu) 00:58",
        "haystack_dates": ["2023/05/25 (Thu) 20:21", "2023/05/20 (Sat) 10:20"],
        "haystack_session_ids": ["late", "early"],
        "haystack_sessions": [
            [
                {"role": "user", "content": "I bought a cello.", "has_answer": True},
                {"role": "assistant", "content": "Well done."},
            ],
            [{"role": "user", "content": "It rains."}, {"role": "assistant", "content": "Indeed."}],
        ],
        "answer_session_ids": ["late"],
    } | changed


def locomo_sample(**changed: Any) -> dict[str, Any]:
    return {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ada", "dia_id": "D1:1", "text": "I adopted a goat."},
                {
                    "speaker": "Ben",
                    "dia_id": "D1:2",
                    "text": "Look!",
                    "blip_caption": "a photo of a boat",
                },
            ],
            "session_2_date_time": "9:05 am on 2 June, 2023",
            "session_2": [{"speaker": "Ben", "dia_id": "D2:1", "text": "I sold the boat."}],
            "session_3_date_time": "9:05 am on 3 June, 2023",
        },
        "qa": [
            {
                "question": "What did Ada adopt?",
                "answer": "a goat",
                "evidence": ["D1:1"],
                "category": 4,
            },
            {
                "question": "When was that?",
                "answer": 2023,
                "evidence": ["D1:1; D2:1"],
                "category": 2,
            },
            {
                "question": "What goat did Ben adopt?",
                "adversarial_answer": "a goat",
                "evidence": ["D1:1"],
                "category": 5,
            },
        ],
    } | changed


def beam_chat() -> list[dict[str, Any]]:
    """Two batches; a date stands at the first message of a batch, a mark at the end of some."""

    def said(role: str, id: int, text: str, **more: Any) -> dict[str, Any]:
        return {"role": role, "id": id, "content": text, **more}

    first = [
        [
            said("user", 0, "I keep two hens. ->-> 1,1", time_anchor="March-15-2024", index="1,1"),
            said("assistant", 1, "Nice.\n**Feed:** corn\n**Water:** daily\n**Feed:** less"),
        ],
        [said("user", 2, "I rent a plot."), said("assistant", 3, "Good.")],
    ]
    second = [[said("user", 4, "Now I keep five hens.", time_anchor="April-02-2024")]]
    return [
        {"batch_number": 1, "turns": first, "time_anchor": None},
        {"batch_number": 2, "turns": second, "time_anchor": None},
    ]


def beam_questions() -> dict[str, Any]:
    return {
        "abstention": [
            {
                "question": "What is my cat called?",
                "ideal_response": "The chat does not say.",
                "rubric": ["there is no information about a cat"],
            }
        ],
        "knowledge_update": [
            {
                "question": "How many hens do I keep?",
                "answer": "Five.",
                "source_chat_ids": {"original_info": [0], "updated_info": [4]},
                "rubric": ["LLM response should state: five hens"],
            }
        ],
        "instruction_following": [
            {
                "question": "What do hens eat?",
                "expected_compliance": "Names corn.",
                "source_chat_ids": [[1], 2],
                "rubric": ["names corn", "is short"],
            },
            {"question": "And in winter?", "source_chat_ids": [2], "rubric": []},
        ],
    }


def beam(folder: Path) -> Sample:
    (folder / "1" / "probing_questions").mkdir(parents=True)
    write(folder / "1" / "probing_questions" / "probing_questions.json", beam_questions())
    return Sample(folder, write(folder / "1" / "chat.json", beam_chat()), {}, 4)


def locomo_plus_pair(**changed: Any) -> dict[str, Any]:
    return {
        "relation_type": "causal",
        "cue_dialogue": "A: I said no today.\nB: That is a skill.",
        "trigger_query": "A: I took on a project again.",
        "time_gap": "two weeks later",
    } | changed


def locomo_plus(folder: Path) -> Sample:
    write(folder / "locomo10.json", [locomo_sample()])
    pairs = [locomo_plus_pair(), locomo_plus_pair(time_gap="several months later")]
    return one(write(folder / "locomo_plus.json", pairs), 2)


def msc_row(**changed: Any) -> dict[str, Any]:
    return {
        "personas": [["I keep bees.", "I am tall."], ["I swim."]],
        "dialog": [
            {"text": "Hello again.", "id": "Speaker 1"},
            {"text": "Hi! I swam today.", "id": "Speaker 2"},
        ],
        "previous_dialogs": [
            {"dialog": [{"text": "I keep bees."}, {"text": "How nice."}], "time_back": "3 days ago"}
        ],
        "metadata": {"initial_data_id": "valid_7"},
    } | changed


def perltqa_memories() -> dict[str, Any]:
    return {
        "Ann Lee": {
            "profile": {"Protagonist": "Ann Lee", "Age": 28, "Hobbies": "chess"},
            "profile_description": "Ann Lee plays chess.",
            "social_relationship": {
                "4_0": {
                    "Supporting Characters": "Bo Lee",
                    "Relationship": "brother",
                    "Description": "Lives in Ely.",
                }
            },
            "events": {
                "4_0_0": {
                    "content": "They sailed to Ely.",
                    "summary": "A trip",
                    "Creation Time": "May 12, 2022",
                },
                "4_0_1": {
                    "content": "They baked bread.",
                    "summary": "Bread",
                    "Creation Time": "in spring",
                },
            },
            "dialogues": {
                "4_0_0#0": {
                    "events": "4_0_0",
                    "contents": {"2022-05-13 10:00:00": ["Ann Lee: What a trip!"]},
                }
            },
        }
    }


def perltqa_questions() -> list[dict[str, Any]]:
    def qa(question: str, answer: Any, reference: str, *anchors: str) -> dict[str, Any]:
        found = [{anchor: [-1, -1]} for anchor in anchors]
        return {
            "Question": question,
            "Answer": answer,
            "Reference Memory": reference,
            "Memory Anchors": found,
        }

    ann = {
        "profile": [qa("How old is Ann?", "She is 28.", "Age", "28")],
        "social_relationship": [{"4_0": [qa("Who is Bo?", "Her brother.", "['4_0']", "brother")]}],
        "events": [
            {
                "4_0_0": [
                    qa("Where did they go?", "To Ely.", "['4_0_0']", "sailed", "Bo&#39;s Ely; town")
                ]
            }
        ],
        "dialogues": [{"4_0_0#0": [qa("How was it?", None, "['4_0_0#0']", "trip")]}],
    }
    return [{"Ann Lee": ann}]


def perltqa(folder: Path) -> Sample:
    write(folder / "perltmem_en.json", perltqa_memories())
    return one(write(folder / "perltqa_en.json", perltqa_questions()), 4)


def sgd_schema(service: str, **slots: str) -> dict[str, Any]:
    possible = {"has_cake": ["True", "False"]}
    named = [
        {"name": name, "description": said, "possible_values": possible.get(name, [])}
        for name, said in slots.items()
    ]
    return {"service_name": service, "slots": named}


def sgd_dialogue(service: str, *turns: tuple[str, dict[str, list[str]]] | str) -> dict[str, Any]:
    def turn(said: tuple[str, dict[str, list[str]]] | str) -> dict[str, Any]:
        if isinstance(said, str):
            frame = {
                "service": service,
                "actions": [{"act": "OFFER", "values": ["Ica"]}],
                "service_results": [{"city": "Ica"}],
            }
            return {"speaker": "SYSTEM", "utterance": said, "frames": [frame]}
        return {
            "speaker": "USER",
            "utterance": said[0],
            "frames": [{"service": service, "state": {"slot_values": said[1]}}],
        }

    return {
        "dialogue_id": "1_00000",
        "services": [service],
        "turns": [turn(said) for said in turns],
    }


def sgd(folder: Path) -> Sample:
    first, agreed = (
        {"city": ["Lima"], "time": ["6 pm"]},
        {"city": ["Cusco"], "time": ["6 pm"], "party_size": ["2"]},
    )
    later, visit = (
        agreed | {"time": ["19:00", "7 pm"]},
        {"baker_name": ["Ann"], "visit_date": ["tomorrow"], "has_cake": ["True"]},
    )
    turns = (
        ("A table in Lima at 6 pm.", first),
        "Lima is full; Cusco or Ica?",
        ("Cusco, and for two.", agreed),
    )
    rows = [
        sgd_dialogue(
            "Restaurants_9", *turns, "For two in Cusco at 6 pm?", ("Better 7 pm.", later), "Done."
        ),
        sgd_dialogue("Services_9", ("True, tomorrow I see Ann.", visit)),
        sgd_dialogue(
            "RentalCars_9",
            ("A small one.", {"car_type": ["small"]}),
            ("Any.", {"car_type": ["dontcare"]}),
        ),
    ]
    dinner = {
        "city": "City in which the restaurant is",
        "time": "Time of the booking",
        "party_size": "Size of the party",
    }
    bakery = {
        "baker_name": "Name of the baker",
        "visit_date": "Date of the visit",
        "has_cake": "Whether there is cake",
    }
    services = {
        "Restaurants_9": dinner,
        "Services_9": bakery,
        "RentalCars_9": {"car_type": "Type of the car"},
    }
    write(folder / "schema.json", [sgd_schema(name, **slots) for name, slots in services.items()])
    return Sample(
        folder,
        write(folder / "dialogues_001.json", rows),
        {"dialogues": "3,3", "chunk_tokens": 17},
        8,
    )


# ------------------------------------------------------------------------------------------------
# labels
SENTENCES = [(f"sentence {n} speaks of topic {n % 3}", "abc"[n % 3]) for n in range(18)]
TREC = "".join(
    f"{label.upper()}:fine{n % 2} {text} \xe9 ?\n" for n, (text, label) in enumerate(SENTENCES)
)
PUBMED = "".join(
    (f"###{n}\n" if n % 6 == 0 else "") + f"{label.upper()}\t{text} .\n"
    for n, (text, label) in enumerate(SENTENCES)
)
BANKING = "".join(f'"{text}, then",{label}\n' for text, label in SENTENCES)
CLINC = {
    "val": [["other split", "a"]],
    "train": [list(pair) for pair in SENTENCES],
    "oos_train": [["what is this", "oos"]],
}
CSABSTRUCT = [
    {
        "abstract_id": n,
        "sentences": [text for text, _ in SENTENCES[n : n + 6]],
        "labels": [label for _, label in SENTENCES[n : n + 6]],
    }
    for n in range(0, 18, 6)
]


def hwu64(folder: Path) -> Sample:
    (folder / "seq.in").write_text("".join(f"{text}\n" for text, _ in SENTENCES))
    (folder / "label").write_text("".join(f"{label}_query\n" for _, label in SENTENCES))
    return Sample(folder, folder / "seq.in", LABELS, 18)


# ------------------------------------------------------------------------------------------------
# others
def booksum_row(**changed: Any) -> dict[str, Any]:
    return {
        "bid": 7,
        "summary_id": "chapter 1",
        "chapter": "It was morning. Then the captain of the Nautilus saw land. He was glad.",
        "summary_text": "At dawn the captain sees land from the Nautilus. "
        "The Nautilus sails on with Captain Nemo.",
    } | changed


def qmsum_row(**changed: Any) -> dict[str, Any]:
    return {
        "topic_list": [],
        "meeting_transcripts": [
            {"speaker": "Chair", "content": "Let us begin."},
            {"speaker": "Kim", "content": "The budget is short."},
            {"speaker": "Chair", "content": "Then we cut travel."},
        ],
        "general_query_list": [{"query": "What was the meeting about?", "answer": "The budget."}],
        "specific_query_list": [
            {
                "query": "What did Kim say?",
                "answer": "The budget is short.",
                "relevant_text_span": [["1", "1"]],
            },
            {"query": "What was cut?", "answer": "travel", "relevant_text_span": [["1", "2"]]},
        ],
    } | changed


BABI = """1 Mary went to the kitchen.
2 John took the apple and the milk.
3 Where is Mary? \tkitchen\t1
4 Mary went to the garden.
5 Where is Mary? \tgarden\t4
1 Sandra carries the football.
2 What is Sandra carrying? \tfootball\t1
"""


def mab_row(**changed: Any) -> dict[str, Any]:
    return {
        "context": "Document 1: The tower stands in Ulm. Document 2: The bridge stands in Bonn.",
        "questions": ["Where does the tower stand?", "Where does the bridge stand?"],
        "answers": [["Ulm"], ["Bonn", "the city of Bonn"]],
        "metadata": {
            "source": "ruler_qa1_197K",
            "qa_pair_ids": ["r_no0", "r_no1"],
            "question_types": ["single", "multi"],
        },
    } | changed


def memalpha_row(**changed: Any) -> dict[str, Any]:
    asked = [
        {"question": "Who sleeps?", "answer": "the owl"},
        {"question": "Who runs?", "answer": "the fox"},
    ]
    return {
        "instance_id": "m1",
        "data_source": "squad",
        "chunks": json.dumps(["The owl sleeps.", "The fox runs."]),
        "questions_and_answers": json.dumps(asked),
        "num_chunks": 2,
        "num_questions": 2,
    } | changed


LABELS = {"questions": 4, "chunk_tokens": 20}


def of_rows(name: str, rows: Any, asked: int, **options: Any) -> Callable[[Path], Sample]:
    return lambda folder: one(write(folder / name, rows), asked, **options)


SAMPLES: dict[str, Callable[[Path], Sample]] = {  # every source that reads a file
    "babi": of_rows("qa1_single-supporting-fact_train.txt", BABI, 3),
    "beam": beam,
    "banking77": of_rows("train.csv", "text,category\n" + BANKING, 18, **LABELS),
    "clinc150": of_rows("data_full.json", CLINC, 20, **LABELS),
    "csabstruct": of_rows("train.jsonl", CSABSTRUCT, 18, **LABELS),
    "hwu64": hwu64,
    "perltqa": perltqa,
    "pubmed_rct": of_rows("train.txt", PUBMED, 18, **LABELS),
    "squad": squad,
    "trec_coarse": of_rows("train.txt", TREC, 18, **LABELS),
    "trec_fine": of_rows("train.txt", TREC, 18, **LABELS),
    "sgd": sgd,
    "booksum": of_rows("booksum.jsonl", [booksum_row(), booksum_row(bid=8)], 2),
    "hotpotqa": of_rows("hotpot.json", [hotpot_row(n) for n in range(3)], 3),
    "locomo": of_rows("locomo.json", [locomo_sample()], 3),
    "locomo_plus": locomo_plus,
    "longmemeval": of_rows("lme.json", [longmemeval_item("a"), longmemeval_item("b_abs")], 2),
    "memalpha": of_rows("memalpha.jsonl", [memalpha_row()], 2),
    "memoryagentbench": of_rows("mab.jsonl", [mab_row()], 2),
    "msc": of_rows(
        "test.jsonl", [msc_row(), msc_row(self_instruct={"B": "What do I keep?", "A": "bees"})], 3
    ),
    "musique": of_rows("musique.jsonl", [musique_row(n) for n in range(3)], 3),
    "qmsum": of_rows("qmsum.jsonl", [qmsum_row()], 3),
}


def load(
    name: str, path: object, seed: int = 0, count: Any = count_words_and_signs, **options: Any
) -> tuple[list[Instance], SimpleNamespace]:
    """A source's instances; and what it left out, by reason, and how many questions it read."""
    tally = Tally()
    instances = list(tally.instances(get_source(name).load(str(path), options, seed, count)))
    asked = sum(len(instance.questions) for instance in instances) + tally.skipped.total()
    given = {"skipped": +tally.skipped, "notes": +tally.notes}
    return instances, SimpleNamespace(problems=tally.problems, asked=asked, **given)


def taught(
    instance: Instance, schema: MemorySchema, config: TeacherConfig
) -> tuple[Memory, list[OperationResult]]:
    """The memory that the teacher keeps, and the results of its operations."""
    memory = Memory(schema)
    return memory, teach(memory, instance, random.Random(instance.id), config)


def passages(memory: Memory) -> tuple[str, ...]:
    """All that a reader of the whole memory sees."""
    blocks = [memory.block(section.name) for section in memory.schema.blocks]
    return (*filter(None, blocks), *(render_entry(entry) for entry in memory.entries()))


def keeper_scores(
    instances: Iterable[Instance],
    schema: MemorySchema,
    config: TeacherConfig,
    right: Callable[..., Any],
) -> dict[str, float]:
    """Share of questions that ``right`` finds in the memories of the teacher, by kind."""
    found, asked = Counter[str](), Counter[str]()
    for instance in instances:
        notes = passages(taught(instance, schema, config)[0])
        for question in instance.questions:
            asked[question.kind] += 1
            found[question.kind] += right(question, notes)
    return {kind: found[kind] / times for kind, times in asked.items()}
