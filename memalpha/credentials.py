"""Finds keys, tokens and passwords in texts, and hides them.

``secrets_in`` finds them by three kinds of rules, which need no library. A key of a service has a
known beginning, or a long body of mixed letters and digits behind one; the whole token counts. A
value is assigned to a name that says so, as in ``.env`` files, JSON, YAML, headers, commands and
addresses. People write "the password is ..." in many languages; there only a word that is no
ordinary one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MASK = "***"


class Sensitive(NamedTuple):
    """A part of a text that should not be kept, and its kind."""

    start: int
    end: int
    what: str


# ------------------------------------------------------------------------------------------------
# keys of services
_GITLAB = "glpat gloas glrt glrtr glcbt glptt glft glimt glagent glsoat gldt glffct glwt".split()
_HEX = r"(?:[0-9a-f]{32,}|[0-9A-F]{32,})"
_KEYS = {
    "GitHub token": r"gh[pousr]_\w{20,}|github_pat_\w{20,}",
    "GitLab token": rf"(?:{'|'.join(_GITLAB)})-[\w.-]{{20,}}|GR1348941[\w-]{{20,}}",
    "Slack token": r"xox[a-z](?:\.xox[a-z])?-[\w-]{10,}|xapp-[\w-]{10,}",
    "AWS access key": r"(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16,}",
    "Google key": r"AIza[\w-]{30,}|GOCSPX-[\w-]{20,}|ya29\.[\w-]{20,}|1//0[\w-]{30,}",
    "Stripe key": r"(?:sk|rk)_(?:live|test)_\w{16,}|whsec_[\w+/=]{20,}",
    "JSON Web Token": r"eyJ[\w-]{8,}={0,2}\.[\w-]{4,}={0,2}(?:\.[\w-]*={0,2}){0,3}",
    "SendGrid key": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "Atlassian token": r"AT(?:ATT3|CTT3|BB)[\w=-]{20,}",
    "Telegram token": r"\d{8,10}:AA[\w-]{32,}",
    "Vault token": r"hv[sbr]\.[\w-]{20,}",
    "Age key": r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
    "API key": "|".join(
        (
            r"sk-[\w-]{20,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek, Langfuse
            r"(?:gsk|hf|npm|ntn|r8|xai|pplx|csk|fw|nvapi|jina|tvly|figd|PMAK|NRAK|CFPAT|HRKU)"
            r"[_-](?:[a-z]{2,5}-)?[A-Za-z0-9_-]{20,}",
            r"(?:lin_api|lin_oauth|lsv2_pt|lsv2_sk|dckr_pat|dckr_oat|pscale_pw|pscale_tkn|api_org|"
            r"sb_secret|tgp_v1|sntrys|sntryu|glsa|glc|sbp|tfp|nfp|rdme|rnd|pul|phx|esecret|"
            r"shpat|shpss|shpca|shppa|sq0atp|sq0csp)[_-][\w-]{20,}",
            r"tskey-[\w-]{20,}",
            r"(?:secret|sk|re|dp\.pt|dt0c01)[_.-](?:[A-Za-z0-9]+[_.-])?[A-Za-z0-9]{24,}",
            rf"(?:key|dapi|dop_v1|doo_v1|dor_v1|rubygems|xkeysib|xsmtpsib|pat[A-Za-z0-9]{{14}})"
            rf"[_.-]?{_HEX}[\w-]*",
            r"pypi-[\w-]{50,}",
            # a beginning in small letters, and a body that no name or number has
            r"[a-z][a-z0-9]{1,11}(?:[_-][a-z0-9]{1,10}){0,2}[_-]"
            r"(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])[A-Za-z0-9]{32,}",
        )
    ),
}
_GROUPS = {what.replace(" ", "_"): what for what in _KEYS}  # names of groups
_KEY = re.compile(
    "(?<![A-Za-z0-9])(?:"
    + "|".join(f"(?P<{name}>{_KEYS[what]})" for name, what in _GROUPS.items())
    + ")"
)
_DIGIT = re.compile(r"\d")
_REST = re.compile(r"[\w=-]*(?:\.[\w-]+)*")  # of a token, up to its end
PRIVATE_KEY = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY[A-Z ]*)-----"
    r"(?:(?:[^-]|-(?!----))*-----END (?P=kind)-----|(?:(?:\\[nr]|\s)*[A-Za-z0-9+/=]{16,})*)",
)
_WHOLE = {
    "private key": PRIVATE_KEY,
    "webhook": re.compile(
        r"https://(?:hooks\.slack\.com/(?:services|workflows)|"
        r"discord(?:app)?\.com/api/webhooks)/[\w/-]{20,}"
    ),
}


# ------------------------------------------------------------------------------------------------
# values of names
_ASSIGNED = re.compile(  # a name and its sign
    r"(?<![\w.])(?<![\w.]-)(?P<name>[^\W\d][\w.-]{1,63}+)[\"']?\]?[^\S\n]{0,3}(?P<sign>:=|=>|=|:)"
    r"[^\S\n]{0,3}"
)
_VALUE = re.compile(
    r"[frbu]?(?P<mark>[\"'`])(?P<quoted>(?:\\.|(?!(?P=mark))[^\\\n])+)(?P=mark)"
    r"|(?P<value>[^\s,;&\"'`<>(){}\[\]]+)"
)
_FLAG = re.compile(
    r"(?<!\S)--?(?P<name>[a-z][a-z-]*)[^\S\n]+(?P<mark>[\"']?)(?P<value>[^\s\"'<>$-][^\s\"'<>]{3,})"
)
_TAG = re.compile(r"<(?:\w+:)?(?P<name>[A-Za-z][\w.-]{2,40})>(?P<value>[^<>\s]{4,})</")
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)[^\S\n]+(?P<value>(?=\S*\d)[\w.~+/=-]{16,})")
_LOGIN = re.compile(
    r"\bcurl\b[^\n]{0,300}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']+:(?P<value>[^\s\"']{3,})"
)
_NETRC = re.compile(r"\blogin\s+\S+\s+password\s+(?P<value>\S{4,})")
_PGPASS = re.compile(
    r"(?<!\S)(?:localhost|\*|[\w-]+(?:\.[\w-]+)+):(?:\d{4,5}|\*):[^\s:]+:[^\s:]+:(?P<value>\S{3,})"
)
_ADDRESS = re.compile(
    r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://(?P<user>[^\s:/?#@\"'<>]*):(?P<value>[^\s/\"'<>]+)@(?=[\w.\[-])",
    re.IGNORECASE,
)
_PARTS = re.compile(
    r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|[0-9]+"
)  # of a name: dbPassword, DB_PASSWORD
_PASSWORDS = frozenset(
    """
    password passwd passphrase passcode pwd pass pw userpass userpassword dbpassword rootpassword
    adminpassword passwort kennwort contrasena contraseña clave senha motdepasse mdp wachtwoord
    haslo hasło heslo salasana parola пароль 密码 密碼 パスワード 비밀번호
    """.split()
)
_SECRETS = frozenset(
    """
    secret token credential credentials apikey apitoken apisecret authtoken accesstoken accesskey
    secretkey privatekey clientsecret refreshtoken sessiontoken authkey pat
    """.split()
)
_NO_SECRET_KEYS = frozenset(
    "public primary foreign sort partition cache unique hot short map".split()
)
_NO_SECRET_TOKENS = frozenset(
    "eos bos pad unk sep cls mask next first last max min special end start per image".split()
)
_AT_THE_END = frozenset(
    "base prod production dev development test staging live local value".split()
)
_PLACEHOLDER = re.compile(
    r"(?i)[*x.•#_-]+|.*\.\.\.|.*(?<![a-z])your.*|<.*|\$.*|%.*%?|\{.*|change[_-]?me|none|null|nil|true|false|undefined|"
    r"required|optional|strings?|str|text|bytes|example|placeholder|redacted|removed|hidden|masked|"
    r"secret|passwords?|passwd|tokens?|todo|tbd|n/a|empty|unset|default|bearer|basic|process\.env.*|"
    r"os\.(?:environ|getenv).*|env[.:].*|vault[:/].*|op://.*|file:.*|"
    r"(?:~|\.{1,2}|/(?:app|data|etc|home|media|mnt|opt|private|root|run|srv|tmp|users|usr|var))/.*|[a-z_]\w*(?:\.[a-z_]\w*)+"
)
_PASSWORD = 4  # characters that a password has at least, where a name says that it is one
_TOKEN = 8  # and a key or token
_LONG = 12  # and one of small letters alone, where nothing marks its end


def _of_name(name: str) -> str:
    """What the value of a name is: ``password``, ``secret``, or empty: nothing to hide."""
    parts = [part.casefold() for part in _PARTS.findall(name)]
    while len(parts) > 1 and (parts[-1].isdecimal() or parts[-1] in _AT_THE_END):
        parts.pop()
    before, last = (["", *parts][-2:]) if parts else ("", "")
    if last in _PASSWORDS or before + last in _PASSWORDS:
        return "password"
    if last == "key":
        return "secret" if before and before not in _NO_SECRET_KEYS else ""
    return "secret" if last in _SECRETS and before not in _NO_SECRET_TOKENS else ""


def _is_value(name: re.Match[str], given: re.Match[str], what: str) -> bool:
    """Whether an assignment's value is a secret and no placeholder, word or piece of code."""
    value = (given["quoted"] or given["value"]).rstrip(".,;")
    least = _PASSWORD if what == "password" else _TOKEN
    if len(value) < least or re.search(r"\s", value) or _PLACEHOLDER.fullmatch(value):
        return False
    text = name.string
    setting = name["name"].isupper() and ("_" in name["name"] or what == "password")
    if setting and text.startswith("=", name.end("name")):
        return True
    listed = name["sign"] == "=" and text[name.start() - 1 : name.start()] in (";", "&", "?")
    if listed and what == "password":
        return True
    mixed = bool(re.search(r"\d", value) and re.search(r"[^\W\d_]", value))
    if given["quoted"] is not None:
        return what == "password" or mixed or len(value) >= 2 * _LONG
    if text.startswith(("(", "["), given.end()):  # it is called or indexed
        return False
    compound = len(_PARTS.findall(name["name"])) > 1
    word = value.isascii() and value.isalpha() and value.islower()
    return compound and (mixed or (what == "password" and (len(value) >= _LONG or not word)))


def _find_options(text: str) -> Iterator[Sensitive]:
    """Options of commands and elements of XML whose name says so."""
    for pattern in (_FLAG, _TAG):
        for match in pattern.finditer(text):
            what = _of_name(match["name"])
            least = _PASSWORD if what == "password" else _TOKEN
            value = match["value"]
            odd = re.search(r"[^a-z]", value)
            if what and len(value) >= least and odd and not _PLACEHOLDER.fullmatch(value):
                yield Sensitive(*match.span("value"), what)


def _find_assignments(text: str) -> Iterator[Sensitive]:
    for name in _ASSIGNED.finditer(text):
        what = _of_name(name["name"])
        given = _VALUE.match(text, name.end()) if what else None
        if given and _is_value(name, given, what):
            start, end = given.span("quoted" if given["quoted"] is not None else "value")
            yield Sensitive(start, start + len(text[start:end].rstrip(".,;")), what)
    for pattern, what in ((_BEARER, "token"), (_LOGIN, "password"), (_NETRC, "password")):
        yield from (Sensitive(*match.span("value"), what) for match in pattern.finditer(text))
    for pattern in (_ADDRESS, _PGPASS):
        for match in pattern.finditer(text):
            if not _PLACEHOLDER.fullmatch(match["value"]):
                yield Sensitive(*match.span("value"), "password of an address")


# ------------------------------------------------------------------------------------------------
# what people say
_SAID = re.compile(
    r"(?i)\b(?P<what>password|passwort|passcode|passphrase|pass phrase|passwd|pwd|pin(?: code)?|"
    r"(?:alarm|door|gate|access|security|unlock|recovery|backup|login) codes?|"
    r"(?:api|access|secret|private|licen[cs]e|deploy|auth\w*)[ _-]?(?:key|token|secret)|secret|"
    r"token)(?:['’]s)?"
    r"(?: (?:for|of|to|on|at) (?:(?!\bis\b)[\w'’.-]+ ?){1,4})?"
    r"(?:['\"]? ?(?:=|:) ?|(?: (?:is|was|are))? (?:now |still )?(?:set to )?)['\"]?"
    r"(?P<value>[^\s'\"<>]{3,})"
)
# how the words begin in other languages, and English ones that they took over; _ is a space
_WORDS = {
    "password": """
        passw passcode kennw zugangsdaten contraseñ contrasen clave mot_de_passe mdp senha
        palavra-passe palavra_passe wachtwoord hasł haslo lösenord adgangskod kodeord passord
        salasan jelsz hesl lozink zapork gesl parol parool slaptažod şifre sifre mật_khẩu sandi
        κωδικ συνθηματικ парол лозинк гасл 密码 密碼 口令 合言葉 パスワード パスコード 비밀번호
        암호 비번 패스워드 كلمة_المرور كلمة_السر סיסמ הסיסמ पासवर्ड รหัสผ่าน
    """,
    "pin": """
        pin pin-code pincode pinkod pinkoden geheimzahl zugangscode türcode código_pin
        código_secreto código_de_acceso código_de_la_puerta código_da_porta codice_pin
        codice_segreto codice_di_accesso code_pin code_secret code_confidentiel code_d'accès
        code_wifi code_wi-fi пин пин-код пинкод код_от_двери 暗証番号 暗证号 비밀_번호 الرقم_السري
    """,
    "key": """
        api-schlüssel api_schlüssel apischlüssel zugangsschlüssel zugriffsschlüssel geheimschlüssel
        clé_api clé_d'api clé_d'accès clé_secrète clé_privée clave_api clave_de_api clave_de_la_api
        clave_privada llave_privada llave_api chave_api chave_da_api chave_de_api chave_de_acesso
        chave_secreta chiave_api chiave_di_accesso chiave_segreta klucz_api api-ключ api_ключ
        ключ_api ключ_к_api api-nyckel api-nøgle api-nøkkel api-sleutel api-avain apikey api密钥
        api_密钥 apiキー api_キー api키 api_키 密钥 密鑰 token jeton токен トークン 令牌 토큰
    """,
}
_OF = (
    "für fürs zum zu vom von bei im para por pour de del du des della dello di do da dos das al "
    "a à van voor naar till til för på ke pro для от к на в untuk cho of for"
)
_IS = (
    "ist lautet war heißt heisst es era será est était sera è é foi is was luidt är var er on oli "
    "je bylo byl to jest este είναι ήταν adalah ialah là это эта был была هي هو היא הוא है คือ — – -"
)
_YET = (
    "jetzt nun noch weiterhin ahora todavía maintenant toujours ora ancora agora ainda nu nog "
    "teraz теперь сейчас nyt şimdi sekarang now still"
)
_IDEOGRAPHIC = "[\u3400-\u9fff]{0,4}?(?:是|為|为|成了?|到了?)|は|が|を|って|는|은|가|이|을|를|คือ"


def _any_of(words: str) -> str:
    longest_first = sorted(words.split(), key=len, reverse=True)
    return "|".join(word.replace("_", "[ ]") for word in longest_first)


_WORD = "|".join(
    f"(?P<{what}>{_any_of(words)})" + ("" if what == "password" else "(?![a-zа-я])")
    for what, words in _WORDS.items()
)
_SAID_ELSEWHERE = re.compile(
    rf"""(?ix) (?: (?<![a-z0-9_]) | (?=[^\x00-\u0dff]) | (?<=[a-zäöüß])(?=passw|kennw) )
    (?: {_WORD} ) (?: (?<=[^\x00-\u0dff]) | (?:(?![\u0dff-\uffff])[^\W\d_]){{0,12}}+ (?!\w) )
    (?: [ ] (?:{_any_of(_OF)})
        (?: [ ] (?! (?:{_any_of(_IS)})[ ] ) [^\s:=]++ ){{1,4}} )?
    (?: [ ]?[:=：＝] | [ ](?:{_any_of(_IS)}):?(?=[ ]) | [ ]?(?:{_IDEOGRAPHIC}) )?
    (?: [ ](?:{_any_of(_YET)})(?=[ ]) ){{0,2}} [ ]? ["'“”„«»‹›「『‘’`]? [ ]?
    (?P<value> [!\#-&(-;=?-_a-~À-ɏ]{{3,}} )"""
)
_BEGINNINGS = [word.replace("_", " ") for words in _WORDS.values() for word in words.split()]


def _find_phrases(text: str) -> Iterator[Sensitive]:
    plain = text.casefold()
    asked = any(map(plain.__contains__, _BEGINNINGS))  # far quicker than the pattern
    for pattern in (_SAID, _SAID_ELSEWHERE) if asked else (_SAID,):
        for match in pattern.finditer(text):
            groups = match.groupdict()
            what = groups.get("what") or next(name for name in _WORDS if groups[name])
            value = match["value"].rstrip(".,;?)")
            if _is_no_word(what.casefold(), value.rstrip("!")) and not _PLACEHOLDER.fullmatch(
                value
            ):
                yield Sensitive(match.start("value"), match.start("value") + len(value), what)


def _is_no_word(what: str, value: str) -> bool:
    """Whether what follows ``password is`` is no ordinary word."""
    mixed = bool(re.search(r"\d", value)) and bool(re.search(r"[^\W\d_]", value))
    if what.startswith("pin") or "code" in what:
        return bool(re.fullmatch(r"[\d-]{4,12}|(?=\w*\d)[A-Za-z0-9-]{6,}", value))
    if what in ("secret", "token", "key"):
        return len(value) >= _TOKEN and mixed
    odd = bool(re.search(r"[A-Z].*[a-z]|[a-z].*[A-Z]|[!@#$%^&*_+=-]|\d", value[1:]))
    return len(value) >= 5 and (mixed or odd) and not re.fullmatch(r"[A-Za-z]+['’]\w+", value)


# ------------------------------------------------------------------------------------------------
# all of them
def secrets_in(text: str) -> list[Sensitive]:
    """Return the keys, tokens and passwords of a text, in order, each whole."""
    spans = [
        Sensitive(match.start(), whole_token(text, match.end()), _GROUPS[match.lastgroup or ""])
        for match in _KEY.finditer(text)
        if _DIGIT.search(match[0])  # else it is made of words
    ]
    spans += [
        Sensitive(*match.span(), what)
        for what, pattern in _WHOLE.items()
        for match in pattern.finditer(text)
    ]
    return split_parts(
        [*spans, *_find_assignments(text), *_find_options(text), *_find_phrases(text)]
    )


def whole_token(text: str, end: int) -> int:
    """Return where the token ends whose first part ends at ``end``."""
    inside = end > 0 and (text[end - 1].isalnum() or text[end - 1] in "_-")
    return _end(_REST, text, end) if inside else end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def split_parts(spans: Iterable[Sensitive]) -> list[Sensitive]:
    """Return spans in order; those that overlap are one, with the name of the first."""
    joined = list[Sensitive]()
    for span in sorted(spans, key=_place):
        if joined and span.start < joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(span.end, joined[-1].end))
        else:
            joined.append(span)
    return joined


def _place(span: Sensitive) -> tuple[int, int]:
    return span.start, -span.end


def without_secrets(text: str) -> str:
    """Return a text with ``***`` for each of its secrets."""
    for span in reversed(secrets_in(text)):
        text = f"{text[: span.start]}{MASK}{text[span.end :]}"
    return text


# ------------------------------------------------------------------------------------------------
# addresses
_USER_INFO = re.compile(r"(://[^:/@\s]*:).*@")
_QUERY = re.compile(
    r"(?i)((?:^|[?&;\s])[\w%-]*(?:passw|pwd|passfile|secret|token|key|user_?info)[\w%-]*\s*=\s*)"
    r"('[^']*'|[^&;\s]+)"
)
_FIELDS = re.compile(r"([^\s:/]+:(?:\d{1,5}|\*):[^\s:]+:[^\s:]+:)\S+")


def shown_address(address: object) -> str:
    """Return the address of a store as it may be shown: with ``***`` for a password, also one in
    its query, and for the values of libpq's other two forms (``password=...``, a line of pgpass).
    """
    text = str(address)
    if "://" in text:
        text = _USER_INFO.sub(rf"\1{MASK}@", text)
    elif _FIELDS.fullmatch(text):
        return _FIELDS.sub(rf"\1{MASK}", text)
    return _QUERY.sub(rf"\1{MASK}", text)
