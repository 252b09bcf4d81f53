"""`python -m memfit.comment`, and the steps of the action and of GitLab's job that use it, with services on
this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from runs import ROOT

REPORT = "<!-- memfit ci -->\n### GPU memory grew\n"


class Service:
    """Comments of one request, as GitHub and GitLab keep them."""

    def __init__(self) -> None:
        self.comments: dict[int, dict[str, Any]] = {}
        self.refused: set[str] = set()
        self.others: set[int] = set()
        self.calls: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        service = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                url = urlsplit(self.path)
                service.calls.append((self.command, url.path))
                service.headers = dict(self.headers)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or "null")
                status, found = service.handle(self.command, url.path, parse_qs(url.query), body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, body: str, other: bool = False) -> int:
        number = 100 + len(self.comments)
        self.comments[number] = {"id": number, "body": body}
        if other:
            self.others.add(number)
        return number

    def handle(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if method in self.refused:
            return 403, {"message": "Resource not accessible by integration"}
        if method == "GET":
            page, size = int(query["page"][0]), int(query["per_page"][0])
            return 200, list(self.comments.values())[(page - 1) * size : page * size]
        if method == "POST":
            return 201, self.comments[self.add(body["body"])]
        number = int(path.rsplit("/", 1)[1])
        if number in self.others:
            return 403, {}
        self.comments[number]["body"] = body["body"]
        return 200, self.comments[number]


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


def environment(kind: str, service: Service, folder: Path) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "CI_", "MEMFIT_GITLAB"))
    }
    if kind == "gitlab":
        return clean | {
            "CI_API_V4_URL": service.url,
            "CI_PROJECT_ID": "7",
            "CI_MERGE_REQUEST_IID": "5",
            "MEMFIT_GITLAB_TOKEN": "secret",
        }
    event = folder / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 5}}))
    return clean | {
        "GITHUB_API_URL": service.url,
        "GITHUB_REPOSITORY": "me/project",
        "GITHUB_TOKEN": "secret",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }


def comment(folder: Path, env: dict[str, str], report: str = REPORT) -> subprocess.CompletedProcess[str]:
    (folder / "report.md").write_text(report)
    command = [sys.executable, "-m", "memfit.comment", "report.md"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_a_comment_is_written_once_and_then_updated(kind: str, service: Service, tmp_path: Path) -> None:
    env = environment(kind, service, tmp_path)
    # More than a page of others, one of which only quotes the marker, and one that is somebody else's.
    for number in range(120):
        service.add(f"comment {number}, not <!-- memfit ci -->")
    foreign = service.add(REPORT, other=True)
    done = comment(tmp_path, env)
    assert (done.returncode, done.stdout) == (0, "the comment was posted\n"), done.stderr
    own = max(service.comments)
    done = comment(tmp_path, env, REPORT + "again\n")
    assert (done.returncode, done.stdout) == (0, "the comment was updated\n"), done.stderr
    assert max(service.comments) == own
    assert service.comments[own]["body"] == REPORT + "again\n"
    assert service.comments[foreign]["body"] == REPORT
    header, path, method = {
        "github": ("Authorization", f"/repos/me/project/issues/comments/{own}", "PATCH"),
        "gitlab": ("Private-Token", f"/projects/7/merge_requests/5/notes/{own}", "PUT"),
    }[kind]
    headers = {name.title(): value for name, value in service.headers.items()}
    assert headers[header].removeprefix("Bearer ") == "secret"
    assert service.calls[-1] == (method, path)
    assert not (tmp_path / "summary.md").exists()


@pytest.mark.parametrize("refused", ["POST", "GET"])
def test_without_the_right_the_report_goes_to_the_summary(
    refused: str, service: Service, tmp_path: Path
) -> None:
    service.refused.add(refused)
    done = comment(tmp_path, environment("github", service, tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "summary.md").read_text().startswith(REPORT)
    assert "not accessible" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_without_a_place_the_report_is_an_error(service: Service, tmp_path: Path) -> None:
    service.refused.add("POST")
    done = comment(tmp_path, environment("gitlab", service, tmp_path))
    assert (done.returncode, "nowhere" in done.stderr) == (2, True)
    # A push has no pull request, and a job elsewhere has nothing.
    env = environment("github", service, tmp_path)
    (tmp_path / "event.json").write_text("{}")
    assert comment(tmp_path, env).returncode == 0
    assert (tmp_path / "summary.md").read_text().startswith(REPORT)
    del env["GITHUB_STEP_SUMMARY"]
    assert comment(tmp_path, env).returncode == 2
    assert comment(tmp_path, env, "no marker").returncode == 2


def test_a_report_that_is_too_long_is_cut(service: Service, tmp_path: Path) -> None:
    done = comment(tmp_path, environment("github", service, tmp_path), REPORT + "x" * 100_000)
    assert done.returncode == 0, done.stderr
    (body,) = (one["body"] for one in service.comments.values())
    assert len(body) < 65_536
    assert body.startswith(REPORT)
    assert "longer" in body


# A fake memfit that returns the given answer, and records its arguments.
FAKE = """#!/bin/sh
printf '%s\\n' "$@" > "$TOLD"
printf '%s\\n' '<!-- memfit ci -->' 'the report'
exit "$STATUS"
"""


def installed(folder: Path) -> Path:
    """An environment with that memfit, and this interpreter."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    (binaries / "memfit").write_text(FAKE)
    (binaries / "memfit").chmod(0o755)
    python = binaries / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.mark.parametrize(("base", "status"), [("", 0), ("origin/main", 1), ("it's a; b", 2)])
def test_the_actions_step_comments_and_ends_as_memfit_did(
    base: str, status: int, service: Service, tmp_path: Path
) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = (step for step in action["runs"]["steps"] if step["name"] == "Compare")
    assert step["if"] == "inputs.run == 'ci'"
    inputs = {"base": base, "token": "secret"}
    given = {
        name: inputs[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in step["env"].items()
    }
    runner = tmp_path / "runner's temp"
    installed(runner / "memfit")
    told = tmp_path / "told"
    env = environment("github", service, tmp_path) | given
    env |= {
        "RUNNER_TEMP": str(runner),
        "GITHUB_ACTION_PATH": str(ROOT),
        "TOLD": str(told),
        "STATUS": str(status),
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert told.read_text().splitlines() == [
        "ci",
        "--format",
        "markdown",
        *(["--base", base] if base else []),
    ]
    assert [one["body"] for one in service.comments.values()] == ["<!-- memfit ci -->\nthe report\n"]
    assert "the report" in done.stdout


@pytest.mark.parametrize(("base", "status"), [("", 0), ("origin/main", 1)])
def test_gitlabs_job_comments_and_ends_as_memfit_did(
    base: str, status: int, service: Service, tmp_path: Path
) -> None:
    job = yaml.safe_load((ROOT / "packaging/gitlab/memfit-ci.yml").read_text())["memfit-ci"]
    assert job["artifacts"]["paths"] == ["memfit-ci.md"]
    installed(tmp_path / ".memfit-venv")
    told = tmp_path / "told"
    env = environment("gitlab", service, tmp_path) | job["variables"]
    env |= {"MEMFIT_BASE": base, "TOLD": str(told), "STATUS": str(status)}
    # The last step; those before install memfit. A runner uses sh where an image has no bash.
    done = subprocess.run(
        ["sh", "-e", "-c", job["script"][-1]],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert told.read_text().splitlines() == [
        "ci",
        "--format",
        "markdown",
        *(["--base", base] if base else []),
    ]
    assert [one["body"] for one in service.comments.values()] == ["<!-- memfit ci -->\nthe report\n"]
    assert (tmp_path / "memfit-ci.md").read_text().endswith("the report\n")
