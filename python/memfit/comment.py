"""Post a report as a comment of a pull or merge request: `python -m memfit.comment report.md`.

In a job of GitHub Actions or GitLab CI, the environment names the request. The report's first line is a
hidden marker (`<!-- … -->`): an earlier comment that begins with it is replaced. Without the right to
comment, the report goes to the job's summary on GitHub; GitLab keeps it as an artifact.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Comments of one page, the most that both services give.
PER_PAGE = 100
#: Pages that are searched for an earlier comment.
MAX_PAGES = 50
#: GitHub's limit is 65536 characters.
MAX_BODY = 60_000
CUT = "\n\n… the report is longer; see the job's output.\n"
TIMEOUT_S = 30
#: Answers that mean "you may not": a fork's token, a missing right, a private project.
DENIED = (401, 403, 404)


class CommentError(Exception):
    """The report could not be posted."""


class DeniedError(CommentError):
    """The token lacks the right."""


class Service:
    """Comments of one pull or merge request."""

    def __init__(self, comments: str, comment: str, headers: Mapping[str, str], update: str) -> None:
        self.comments = comments
        self.comment = comment
        self.headers = dict(headers)
        self.update = update

    def request(self, method: str, url: str, body: str | None = None) -> Any:
        data = None if body is None else json.dumps({"body": body}).encode()
        headers = {**self.headers, "Content-Type": "application/json", "User-Agent": "memfit"}
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(500).decode(errors="replace")
            kind = DeniedError if error.code in DENIED else CommentError
            raise kind(f"{method} {url}: {error.code} {error.reason}: {said}") from None
        except (OSError, ValueError) as error:
            raise CommentError(f"{method} {url}: {error}") from error

    def earlier(self, marker: str) -> Iterator[int]:
        """Yield the ids of comments that begin with the marker, the oldest first."""
        for page in range(1, MAX_PAGES + 1):
            found = self.request("GET", f"{self.comments}?per_page={PER_PAGE}&page={page}{self.order}")
            yield from (one["id"] for one in found if (one.get("body") or "").startswith(marker))
            if len(found) < PER_PAGE:
                return

    order = ""

    def post(self, body: str) -> str:
        """Replace the earlier comment, or write the first; return which."""
        marker = body.partition("\n")[0].strip()
        for comment in self.earlier(marker):
            try:
                self.request(self.update, f"{self.comment}/{comment}", body)
            except DeniedError:
                continue  # Somebody else's: anybody can write the marker.
            return "updated"
        self.request("POST", self.comments, body)
        return "posted"


class GitLab(Service):
    order = "&sort=asc"


def github(env: Mapping[str, str]) -> Service | None:
    """Return the pull request of a job of GitHub Actions."""
    token, repository = env.get("GITHUB_TOKEN"), env.get("GITHUB_REPOSITORY")
    event = Path(env.get("GITHUB_EVENT_PATH") or os.devnull)
    try:
        number = json.loads(event.read_text())["pull_request"]["number"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not token or not repository:
        return None
    base = f"{env.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{repository}/issues"
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    return Service(f"{base}/{int(number)}/comments", f"{base}/comments", headers, "PATCH")


def gitlab(env: Mapping[str, str]) -> Service | None:
    """Return the merge request of a job of GitLab CI."""
    names = ("CI_API_V4_URL", "CI_PROJECT_ID", "CI_MERGE_REQUEST_IID", "MEMFIT_GITLAB_TOKEN")
    api, project, request, token = (env.get(name) for name in names)
    if not (api and project and request and token):
        return None
    notes = f"{api}/projects/{project}/merge_requests/{request}/notes"
    return GitLab(notes, notes, {"PRIVATE-TOKEN": token}, "PUT")


def publish(report: str, env: Mapping[str, str]) -> str:
    """Post a report, or add it to the job's summary; return what was done."""
    if not report.startswith("<!--"):
        raise CommentError("the report has no marker; `memfit ci --format markdown` writes one")
    body = report if len(report) <= MAX_BODY else report[:MAX_BODY] + CUT
    service = github(env) or gitlab(env)
    why = "this job belongs to no pull or merge request, or has no token"
    if service is not None:
        try:
            return f"the comment was {service.post(body)}"
        except DeniedError as error:
            why = str(error)
    summary = env.get("GITHUB_STEP_SUMMARY")
    if not summary:
        raise CommentError(f"there is nowhere to post the report: {why}")
    with Path(summary).open("a", encoding="utf-8") as file:
        file.write(f"{report}\n")
    return f"the report is in the job's summary ({why})"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m memfit.comment REPORT.md", file=sys.stderr)
        return 2
    try:
        print(publish(Path(arguments[0]).read_text(encoding="utf-8"), os.environ))
    except (CommentError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
