"""Secrets by form, by name and in sentences of many languages; clean text beside them."""

import string
from random import Random

import pytest

from memalpha.credentials import secrets_in, shown_address, without_secrets

DRAW = Random(11)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def text(count, letters=ALNUM):
    return "".join(DRAW.choice(letters) for _ in range(count - 2)) + "a7"


KEYS = {
    "openai project": f"sk-proj-{text(74)}T3BlbkFJ{text(74)}",
    "openai admin": f"sk-admin-{text(40)}-{text(20)}",
    "anthropic": f"sk-ant-api03-{text(93)}-{text(6)}AA",
    "deepseek": f"sk-{text(32, HEX)}",
    "openrouter": f"sk-or-v1-{text(64, HEX)}",
    "github": f"github_pat_{text(22)}_{text(59)}",
    "github app": f"ghs_{text(40)}",
    "gitlab, routed": f"glpat-{text(27)}.01.{text(9)}",
    "slack app": f"xapp-1-A{text(10)}-{text(13, string.digits)}-{text(64, HEX)}",
    "google": f"GOCSPX-{text(28)}",
    "stripe, of today": f"sk_live_{text(99)}",
    "shopify": f"shpat_{text(32, HEX)}",
    "atlassian": f"ATATT3xFfGF0{text(60)}-{text(20)}={text(8, HEX.upper())}",
    "docker": f"dckr_pat_{text(27)}",
    "databricks": f"dapi{text(32, HEX)}",
    "vault": f"hvs.{text(90)}",
    "tailscale": f"tskey-auth-{text(12)}CNTRL-{text(32)}",
    "huggingface": f"hf_{text(34)}",
    "figma": f"figd_{text(40)}",
    "nobody knows whose": f"acme_{text(40)}",
    "jwt": f"eyJ{text(30)}.eyJ{text(40)}.{text(43)}",
    "pem": f"-----BEGIN PRIVATE KEY-----\n{text(64)}\n{text(64)}\n-----END PRIVATE KEY-----",
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("around", ["Use {} for it.", '"key": "{}",', "https://x.org/?k={}&b=1"])
def test_no_part_of_a_key_is_left(name, around):
    key = KEYS[name]
    left = without_secrets(around.format(key))
    assert not [key[at : at + 9] for at in range(len(key) - 8) if key[at : at + 9] in left]


GIVEN = [  # what stands before the secret, the secret, what stands after it
    ("AWS_SECRET_ACCESS_KEY=", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXKEY", ""),
    ("DB_PASSWORD=", "correcthorse", ""),
    ('export X_TOKEN="', "a8f5f167f44f4964", '"'),
    ("export POSTGRES_PASSWORD=", "mysecretpassword", ""),
    ('$env:ADMIN_PASSWORD="', "Winter2024!", '"'),
    ('{"password": "', "correcthorse", '", "user": "ann"}'),
    ('dbPassword: "', "correcthorse", '"'),
    ("  client_secret: ", "GhTy7-99xyzabc12", ""),
    ("Authorization: Bearer ", "abcdef1234567890abcdef", ""),
    ("X-Api-Key: ", "1234567890abcdef", ""),
    ("mysql --password=", "Sup3rSecret", " -u root"),
    ("tool --token ", "abcdef123456", ""),
    ("curl -u admin:", "hunter2", " https://example.org"),
    ("<password>", "geheim123", "</password>"),
    ("machine h login ann password ", "p4ssw0rd", ""),
    ("db.example.com:5432:app:ann:", "opensesame", ""),
    ("mysql://root:", "pa%40ss", "@localhost:3306/db"),
    ("redis://:", "onlypass", "@localhost:6379/0"),
    ("Server=db;Uid=ann;Pwd=", "correct", ";"),
    ("jdbc:postgresql://h/db?user=ann&password=", "correct", ""),
    ("Das WLAN-Passwort lautet ", "Sommer2024!", ""),
    ("Passwort für das WLAN ist ", "gruen22baum", "."),
    ("die PIN ist ", "4711", "."),
    ("la contraseña del wifi es ", "casa_4455", ""),
    ("le mot de passe du wifi est « ", "soleil77", " »"),
    ("la password è ", "gatto99nero", ""),
    ("minha senha é ", "sol123mar", ""),
    ("het wachtwoord is ", "fiets88pad", ""),
    ("hasło to ", "kotek123", ""),
    ("мой пароль — ", "kot12345", ""),
    ("我的密码是", "Abc12345", "。"),
    ("WiFi密码：", "88888888", ""),
    ("パスワードは「", "abc12345", "」です"),
    ("暗証番号は", "1234", "です"),
    ("비밀번호는 ", "abc12345", "입니다"),
    ("şifrem: ", "kedi1234", ""),
    ("mật khẩu là ", "meo12345", ""),
    ("كلمة المرور هي ", "abc12345", ""),
    ("my password's ", "hunter2x", ""),
]


@pytest.mark.parametrize(("before", "secret", "after"), GIVEN)
def test_a_secret_of_a_name_or_sentence_is_found_and_nothing_else(before, secret, after):
    assert without_secrets(f"{before}{secret}{after}") == f"{before}***{after}"


CLEAN = """
the password is not needed
das Passwort ist falsch
la contraseña es demasiado corta
la clave es la paciencia
密码是必须的
пароль не нужен
Ich habe mein Passwort vergessen und mein Flug ist LH2032
commit 9fceb02d0ae598e95dc970b74767f19372d61af8
id 123e4567-e89b-12d3-a456-426614174000
task-2024-11-29-a-very-long-name-of-a-task
chatcmpl-9aBcDeFgHiJkLmNoPqRsTuVwXyZ12 and call_a1B2c3D4e5F6g7H8i9J0k1L2
https://docs.example.com/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OGvE2upms/edit
https://example.com:8080/path@2x.png
max_new_tokens: 512
eos_token: "<|endoftext|>"
password = os.environ["DB_PASSWORD"]
login(user="ann", password=password)
tokens = logits.argmax(-1)
DB_PASSWORD=${DB_PASSWORD}
api_key="YOUR_API_KEY"
primary_key=user12345
secret santa is on 2024-12-20
password reset link is valid for 24h
pinned 12345
global-warming-is-a-real-problem-in-2024
SHELL=/bin/bash PWD=/srv/ann/project1 OLDPWD=/opt/ann/site2
pwd: ~/src/site2024
""".strip().splitlines()


@pytest.mark.parametrize("line", CLEAN)
def test_ordinary_text_has_no_secret(line):
    assert secrets_in(line) == []


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://u:pw@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p%40w@h/db?sslmode=require", "postgresql://u:***@h/db?sslmode=require"),
        ("postgresql://u:p@w/x?y@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=a&passWord=zz&b=1", "postgresql://h/db?user=a&passWord=***&b=1"),
        ("host=h password=zz user=u", "host=h password=*** user=u"),
        ("h:5432:db:u:zz", "h:5432:db:u:***"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("/srv/ann/me.db", "/srv/ann/me.db"),
    ],
)
def test_an_address_is_shown_without_its_password(address, shown):
    assert shown_address(address) == shown
