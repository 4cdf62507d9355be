"""Every set that is on the Hub: rows of its columns there, given by a stand-in for ``datasets.load_dataset``."""

import datasets
import pytest
from data_samples import hotpot_row, locomo_sample, longmemeval_item, mab_row, memalpha_row, msc_row, musique_row, qmsum_row

from memalpha.data.registry import get_source

PAIRS = [(f"sentence {n} speaks of topic {n % 3}", n % 3) for n in range(30)]
LABELLED = {"questions": 5, "chunk_tokens": 20}


def labelled(text, label):
    return [{text: said, label: number} for said, number in PAIRS]


HOTPOT = {
    **hotpot_row(),
    "context": {"title": ["Noise", "Painter 0"], "sentences": [["None."], ["He painted."]]},
    "supporting_facts": {"title": ["Painter 0"], "sent_id": [0]},
}
SQUAD = {"id": "1", "context": "It is so.", "question": "q?", "answers": {"text": ["so"], "answer_start": [6]}}
STORY = {"id": ["1", "2"], "type": [0, 1], "text": ["Jo came.", "Who came?"], "supporting_ids": [[], ["1"]], "answer": ["", "Jo"]}
CASES = [
    ("squad", "rajpurkar/squad", [SQUAD], {}, 1),
    ("hotpotqa", "hotpotqa/hotpot_qa:distractor", [HOTPOT], {}, 1),
    ("musique", "dgslibisey/MuSiQue", [musique_row()], {}, 1),
    ("longmemeval", "xiaowu0162/longmemeval", [longmemeval_item()], {}, 1),
    ("locomo", "someone/locomo", [locomo_sample()], {}, 2),
    ("msc", "MemGPT/MSC-Self-Instruct", [msc_row(self_instruct={"B": "q?", "A": "a"})], {}, 1),
    ("trec_coarse", "CogComp/trec", labelled("text", "coarse_label"), LABELLED, 5),
    ("trec_fine", "CogComp/trec", labelled("text", "fine_label"), LABELLED, 5),
    ("banking77", "PolyAI/banking77", labelled("text", "label"), LABELLED, 5),
    ("clinc150", "clinc/clinc_oos:plus", labelled("text", "intent"), LABELLED, 5),
    ("hwu64", "someone/hwu64", labelled("text", "label"), LABELLED, 5),
    ("pubmed_rct", "armanc/pubmed-rct20k", labelled("text", "label"), LABELLED, 5),
    ("csabstruct", "allenai/csabstruct", [{"sentences": [s for s, _ in PAIRS], "labels": [n for _, n in PAIRS]}], LABELLED, 5),
    ("booksum", "kmfoda/booksum", [{"chapter": "One. Two.", "summary_text": "Then Ahab came.", "bid": 1}], {}, 1),
    ("qmsum", "someone/qmsum", [qmsum_row()], {}, 3),
    ("babi", "facebook/babi_qa:en-10k-qa1", [{"story": STORY}], {}, 1),
    ("memoryagentbench", "ai-hyz/MemoryAgentBench", [mab_row()], {}, 2),
    ("memalpha", "YuWangX/Memalpha-Memoryagentbench", [memalpha_row()], {}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "hub", "rows", "options", "least"), CASES, ids=[case[0] for case in CASES])
def test_rows_of_the_hub(tmp_path, monkeypatch, name, hub, rows, options, least):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or iter(rows))
    monkeypatch.chdir(tmp_path)
    result = get_source(name).load(hub, {**options, "split": "test"})
    questions = [question for instance in result.instances for question in instance.questions]
    assert asked == [(tuple(hub.split(":")), {"split": "test", "streaming": True})]
    assert len(questions) >= least and result.asked == len(questions) + sum(result.skipped.values())
    assert result.skipped["malformed"] == 0
