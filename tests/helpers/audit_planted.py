"""Stores with planted faults: what is wrong with which entry is known.

Each namespace is one user's: 100 clean entries and a dozen faults, from the templates of one half
(``tuned``, ``held_out``), in an order and with values drawn by a seed.
"""

import base64
import hashlib
import string
from dataclasses import dataclass, field
from datetime import date, timedelta
from random import Random

from memalpha.memory.schema import MemorySchema
from memalpha.retrieval.archive import archive_chunk
from memalpha.store.journal import Namespace, Origin
from memalpha.types import Chunk, Operation, OperationKind

SCHEMA = MemorySchema.load("facts")
CLEAN_EACH = 100
KINDS = {
    "unsupported": ("UNSUPPORTED", 2),
    "wrong-subject": ("SUBJECT", 2),
    "repeats": ("REPEATS", 2),
    "contradictions": ("CONTRADICTIONS", 2),
    "recalled": ("RECALLED", 1),
    "instructions": ("INSTRUCTIONS", 1),
    "secrets": ("SECRETS", 1),
    "identifiers": ("IDENTIFIERS", 1),
    "dead-ends": ("DEAD_ENDS", 1),
}  # of each kind: its templates, and how many a namespace has
ALNUM = string.ascii_letters + string.digits


@dataclass
class Planted:
    """What is in a namespace: its faults, each a kind and the ids of its entries."""

    namespace: Namespace
    faults: list[tuple[str, set[str]]] = field(default_factory=list)
    clean: set[str] = field(default_factory=set)


def luhn(digits):
    doubled = [int(d) * (2 - i % 2) for i, d in enumerate(reversed(digits))]
    return digits + str(-sum(n // 10 + n % 10 for n in doubled) % 10)


def made(rng):
    """Secrets and numbers that are none of a pool: of the right form, and of nobody."""

    def text(count, alphabet=ALNUM):
        return "".join(rng.choice(alphabet) for _ in range(count))

    digits = string.digits
    account = f"DE00{text(18, digits)}"
    checked = 98 - int(f"{account[4:]}131400") % 97
    card = luhn("4" + text(14, digits))
    handle = rng.choice("moss fern otter quill ember".split()) + text(3, digits)
    body = base64.urlsafe_b64encode(text(40).encode()).decode().rstrip("=")
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    payload = base64.urlsafe_b64encode(b'{"sub":"1"}').decode().rstrip("=")
    hexed = hashlib.sha1(text(9).encode()).hexdigest()
    return {
        "openai": f"sk-proj-{text(20)}T3Blbk" + f"FJ{text(20)}",
        "github": "gh" + f"p_{text(36)}",
        "gitlab": "glp" + f"at-{text(20)}",
        "aws": "AK" + f"IA{text(16, string.ascii_uppercase + digits)}",
        "slack": "xo" + f"xb-{text(12, digits)}-{text(12, digits)}-{text(24)}",
        "stripe": "sk_" + f"live_{text(24)}",
        "sendgrid": "SG" + f".{text(22)}.{text(43)}",
        "jwt": f"{header}.{payload}.{body}",
        "pem": "-----BEGIN RSA " + "PRIVATE KEY-----",
        "hexkey": text(32, "0123456789abcdef"),
        "password": rng.choice(["Tr0ub4dor", "gr33nTea", "Sunny-Day", "m00nlight"]) + text(3),
        "password2": f"{text(4, string.ascii_lowercase)}-{text(4)}-9x",
        "pin": text(4, digits),
        "card": " ".join(card[i : i + 4] for i in range(0, 16, 4)),
        "iban": f"DE{checked:02d}{account[4:]}",
        "phone": rng.choice(["+44 20 7946 0", "+1 212 555 0", "+49 30 901820"]) + text(3, digits),
        "email": f"{handle}@{rng.choice(['example.org', 'mail.example.com'])}",
        "nino": f"AB {text(2, digits)} {text(2, digits)} {text(2, digits)} C",
        "ssn": f"{rng.randint(101, 660)}-{rng.randint(10, 99)}-{rng.randint(1000, 9999)}",
        "order": text(rng.choice([6, 8, 10]), digits),
        "version": f"{rng.randint(1, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}",
        "commit": hexed[: rng.choice([7, 12, 40])],
        "handle": handle,
        "flight": f"{text(2, string.ascii_uppercase)}{rng.randint(100, 2999)}",
        "isbn": f"978-{rng.randint(0, 9)}-{text(4, digits)}-{text(4, digits)}-{rng.randint(0, 9)}",
        "year": str(rng.randint(1955, 2020)),
        "age": str(rng.randint(19, 49)),
        "age2": str(rng.randint(50, 79)),
        "dayno": str(rng.randint(1, 14)),
        "dayno2": str(rng.randint(15, 28)),
    }  # fmt: skip


def values(half, rng, user, friend, me):
    slots = made(rng)
    for name, pool in half.POOLS.items():
        slots[name], second = rng.sample(pool, 2)
        slots.setdefault(f"{name}2", second)
    return {**slots, "u": user, "f": friend, "me": me, "me2": me[:3]}


class Filling:
    """Writes chunks and entries into one namespace."""

    def __init__(self, journal, half, namespace, seed):
        self.half = half
        self.rng = Random(f"{half.__name__} {seed}")
        self.durable = journal.memory(namespace, SCHEMA)
        self.planted = Planted(namespace)
        self.me, *self.friends = self.rng.sample(half.POOLS["friend"], 5)
        named = self.rng.random() < 0.5  # whether the user is called by name
        self.user = self.me if named else "User"
        self.used = set()  # (subject, attribute)
        self.day = date(2024, 1, 1)

    def slots(self):
        friend = self.rng.choice(self.friends)
        return values(self.half, self.rng, self.user, friend, self.me)

    def say(self, said, entries, slots, update=None):
        """Read a chunk, write entries (or update one) by it, and return their ids."""
        turns = []
        for turn in said.split("|"):
            text = turn.format(**slots)
            if turn.startswith("T>"):
                turns.append(f"<recalled_memory>\n- {text[2:]}\n</recalled_memory>")
                continue
            speaker = {"A>": "Assistant", "F>": slots["f"]}.get(turn[:2], self.user)
            turns.append(
                f"{speaker}: {text.removeprefix(turn[:2]).strip() if turn[1] == '>' else text}"
            )
        if not any(turn.startswith("Assistant") for turn in turns):
            turns.append(
                f"Assistant: {self.rng.choice(['I see.', 'Noted.', 'Good to know.', 'How nice.'])}"
            )
        chunk = Chunk("\n".join(turns), self.day.isoformat())
        self.day += timedelta(days=1)
        written = []
        with self.durable.writing(Origin("planted")) as memory:
            index, start = memory.clock, len(memory.changes)
            for entry in entries:
                kind = OperationKind.UPDATE if update else OperationKind.INSERT
                operation = Operation(kind, "facts", entry.format(**slots), update)
                result = memory.apply(operation, chunk=index, time=chunk.time)
                if result.changed:  # not what two templates happen to say alike
                    written.append(result.entry_id)
            archive_chunk(memory, index, chunk, memory.changes[start:])
        return written

    def once(self, subject, *attributes):
        """Whether nothing was said of these before; then something is."""
        keys = {(subject, attribute) for attribute in attributes}
        if keys & self.used:
            return False
        self.used |= keys
        return True

    def faults(self):
        tasks = []
        for kind, (name, count) in KINDS.items():
            templates = getattr(self.half, name)
            for template in self.rng.sample(templates, len(templates)):
                has_attribute = kind not in ("instructions", "secrets", "identifiers", "dead-ends")
                if has_attribute and not self.once(self.user, template[0]):
                    continue
                tasks.append((kind, template[1:] if has_attribute else template, self.slots()))
                count -= 1
                if not count:
                    break
        return tasks

    def fill(self):
        tasks = self.faults()
        clean = CLEAN_EACH
        pool = [("clean", self.user, each) for each in (*self.half.CLEAN, *self.half.CHANGED)]
        # the same of each friend, some of it twice the user's
        pool += [("clean", friend, each) for friend in self.friends for each in self.half.OTHER]
        self.rng.shuffle(pool)
        hobbies = 0
        for _, subject, (attribute, *template) in pool:
            several = attribute in ("hobby", "pet") and subject == self.user
            hobbies += several
            if not clean or not (self.once(subject, attribute + (str(hobbies) if several else ""))):
                continue
            slots = {**self.slots(), **({"f": subject} if subject != self.user else {})}
            tasks.append(("clean", template, slots))
            clean -= 1
        # a fault may come before or after what is clean
        self.rng.shuffle(tasks)
        later = []
        for kind, template, slots in tasks:
            said, entry, *again = template
            ids = self.say(said, [entry], slots)
            if again:
                later.append((kind, again, slots, ids))
            else:
                self.note(kind, ids)
        for kind, (said, entry), slots, ids in later:
            if not ids:
                continue
            if kind == "clean":
                self.say(said, [entry], slots, update=ids[0])
                self.note(kind, ids)
            elif kind == "recalled":
                self.note("clean", ids)
                self.note(kind, self.say(said, [entry], slots))
            else:
                self.note(kind, ids + self.say(said, [entry], slots))
        return self.planted

    def note(self, kind, ids):
        if not ids:
            return
        if kind == "clean":
            self.planted.clean |= set(ids)
        else:
            self.planted.faults.append((kind, set(ids)))


def plant(journal, half, namespaces):
    """Fill namespaces of a store and return what was planted in each."""
    return [
        Filling(journal, half, Namespace(f"user-{seed}"), seed).fill() for seed in range(namespaces)
    ]
