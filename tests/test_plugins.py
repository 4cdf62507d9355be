"""Entry points: another package adds a verb; one that is broken or stands twice ends in one error."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MODULE = """
def add_verbs(app):
    @app.command()
    def greet(name: str):
        print(f"hello {name}")
"""


ROUTES = """
from starlette.responses import PlainTextResponse

class Hello:
    options = None
    names_user = False
    max_body_bytes = 5

    @classmethod
    def build(cls, operations, callers, config, options):
        return cls()

    def owns(self, path):
        return path == "/hello"

    def add_to(self, app):
        async def hello(request):
            return PlainTextResponse(f"hello {(await request.body()).decode()}")
        app.add_route("/hello", hello, methods=["POST"])

    def respond(self, problem):
        return PlainTextResponse(f"no: {problem.what}", status_code=problem.status)
"""

SERVE = """
import sys; sys.path.append(sys.argv[1])
from starlette.testclient import TestClient
from memalpha import MemoryAgent
from memalpha.use.access import Callers, Grant, ServeConfig
from memalpha.use.server import build_app

app = build_app(
    MemoryAgent.without_model(store=":memory:"), ServeConfig(), Callers(Grant("local", "a"))
)
with TestClient(app, base_url="http://127.0.0.1") as client:
    for body in ("Ada", "everybody"):
        answer = client.post("/hello", content=body)
        print(answer.status_code, answer.text)
    print(client.get("/v1/memory").json()["total"], client.get("/v1/ping").json()["status"])
"""


def install(site, package, point, group="memalpha.verbs"):
    """Write what pip leaves behind of a package with one entry point."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")


def call(site, *words):
    return subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.append(sys.argv.pop(1))\n"
         "from memalpha.cli import main; main()", str(site), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )  # fmt: skip


def test_a_package_adds_a_verb(tmp_path):
    (tmp_path / "polite.py").write_text(MODULE)
    install(tmp_path, "polite", "greet = polite:add_verbs")
    done = call(tmp_path, "greet", "Ada")
    assert (done.returncode, done.stdout) == (0, "hello Ada\n"), done.stderr
    shown = call(tmp_path, "--help").stdout
    assert "greet" in shown and "router" in shown


def test_a_package_that_cannot_be_loaded_is_named(tmp_path):
    install(tmp_path, "broken", "greet = no_such_module_here:add_verbs")
    done = call(tmp_path, "train", "--help")
    assert done.returncode == 1
    assert "'greet'" in done.stderr and "no_such_module_here" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_name_of_two_packages_is_refused(tmp_path):
    for package in ("polite", "rude"):
        (tmp_path / f"{package}.py").write_text(MODULE)
        install(tmp_path, package, f"greet = {package}:add_verbs")
    done = call(tmp_path, "greet", "Ada")
    assert done.returncode == 1 and "polite:add_verbs and rude:add_verbs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_adds_routes_to_the_server(tmp_path):
    (tmp_path / "polite.py").write_text(ROUTES)
    install(tmp_path, "polite", "hello = polite:Hello", "memalpha.routes")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["200 hello Ada", "413 no: the request's body", "0 ok"], (
        done.stderr
    )
