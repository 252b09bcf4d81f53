// The extension in a real editor: code-server, driven in Chromium. `make vscode-test` runs it.
//
// Environment: MEMFIT_VSIX, MEMFIT_EDITOR (folder of install-editor.sh), MEMFIT_COMMAND, MEMFIT_PYTHON (an
// interpreter with torch), MEMFIT_SHOTS (folder for screenshots), MEMFIT_CHROMIUM.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { after, afterEach, before, test } from "node:test";
import { chromium } from "playwright-core";

const environment = (name, otherwise) => {
  const value = process.env[name] || otherwise;
  assert.ok(value, `set ${name}`);
  return value;
};
const COMMAND = environment("MEMFIT_COMMAND");
const PYTHON = environment("MEMFIT_PYTHON");
const SHOTS = environment("MEMFIT_SHOTS");
const EDITOR = path.join(environment("MEMFIT_EDITOR"), "node_modules/code-server/out/node/entry.js");
const CHROMIUM = environment("MEMFIT_CHROMIUM", "/usr/bin/chromium");

/** The finding is on line 15, and its fix adds parentheses. */
const SCRIPT = `import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 10))

    def forward(self, images):
        return self.body(images)

    @torch.no_grad
    def predict(self, images):
        with torch.no_grad:
            return self(images).argmax(1)


def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        images = torch.randn(8192, 1024, device="cuda")
        labels = torch.randint(0, 10, (8192,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
`;
const NOTEBOOK = {
  cells: [
    { cell_type: "code", execution_count: null, id: "a", metadata: {}, outputs: [], source: ["import torch"] },
    {
      cell_type: "code", execution_count: null, id: "b", metadata: {}, outputs: [],
      source: ["with torch.no_grad:\n", "    pass"],
    },
  ],
  metadata: { language_info: { name: "python" } },
  nbformat: 4,
  nbformat_minor: 5,
};

let home, folder, server, browser, port;

/** Starts code-server with the packaged extension; waits until it listens. */
before(async () => {
  home = fs.mkdtempSync(path.join(os.tmpdir(), "memfit-editor-"));
  folder = path.join(home, "project");
  fs.mkdirSync(folder);
  fs.mkdirSync(SHOTS, { recursive: true });
  fs.writeFileSync(path.join(folder, "train.py"), SCRIPT);
  fs.writeFileSync(path.join(folder, "train.ipynb"), JSON.stringify(NOTEBOOK));
  fs.writeFileSync(path.join(folder, "notes.md"), "# Notes\n");
  const common = ["--user-data-dir", path.join(home, "data"), "--extensions-dir", path.join(home, "extensions")];
  const env = { ...process.env, HOME: home };
  execFileSync("node", [EDITOR, ...common, "--install-extension", environment("MEMFIT_VSIX")], { env });
  writeSettings(COMMAND);
  const listen = ["--auth", "none", "--bind-addr", "127.0.0.1:0", "--disable-telemetry", "--disable-update-check"];
  server = spawn("node", [EDITOR, ...common, ...listen, "--disable-getting-started-override", folder], { env });
  port = await new Promise((resolve, reject) => {
    server.stdout.on("data", (text) => {
      const found = String(text).match(/HTTP server listening on http:\/\/127\.0\.0\.1:(\d+)/);
      if (found) resolve(Number(found[1]));
    });
    server.on("exit", (status) => reject(new Error(`code-server ended with ${status}`)));
  });
  browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
});

after(async () => {
  await browser?.close();
  server?.removeAllListeners("exit");
  server?.kill();
  if (home) fs.rmSync(home, { recursive: true, force: true, maxRetries: 10 });
});

/** What an open page showed when a test failed. */
afterEach(async () => {
  for (const context of browser.contexts()) {
    await shot(context.pages()[0], "failure");
    await context.close();
  }
});

function writeSettings(command) {
  const write = (kind, settings) => {
    const file = path.join(home, "data", kind, "settings.json");
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, JSON.stringify(settings));
  };
  // The editor takes paths from the machine that it works on.
  write("Machine", { "memfit.path": command, "memfit.python": PYTHON });
  write("User", {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Light Modern",
    "workbench.tips.enabled": false,
    "editor.minimap.enabled": false,
    "git.enabled": false,
  });
}

/** Opens the folder in a new page, and answers the question of trust. */
async function open(trust, { width = 1280, height = 900 } = {}) {
  const context = await browser.newContext({ viewport: { width, height } });
  const page = await context.newPage();
  await page.goto(`http://127.0.0.1:${port}/?folder=${folder}`);
  await page.waitForSelector(".monaco-workbench", { timeout: 60_000 });
  const answer = page.getByRole("button", { name: trust ? "Yes, I trust" : "No, I don't trust" });
  await answer.click({ timeout: 60_000 });
  return page;
}

/** Opens a file from the explorer: the search for files needs ripgrep, which the editor does not have. */
async function openFile(page, name) {
  await page.locator(".explorer-folders-view .monaco-list-row").filter({ hasText: name }).dblclick();
  await page.locator(".tab.active").filter({ hasText: name }).waitFor();
}

/** Places the cursor at `LINE` or `LINE:COLUMN`. */
async function goTo(page, line) {
  await page.keyboard.press("Control+G");
  await page.keyboard.type(String(line));
  await page.keyboard.press("Enter");
}

async function perform(page, command) {
  await page.keyboard.press("F1");
  await page.keyboard.type(command);
  await page.locator(".quick-input-list .monaco-list-row").filter({ hasText: command }).first().waitFor();
  await page.keyboard.press("Enter");
}

const squiggles = (page) => page.locator(".squiggly-error");
const hints = (within) => within.locator("[class*='dyn-rule']").filter({ hasText: /[KMG]iB/ });
const hintOf = (page, line) => hints(page.locator(".view-line").filter({ hasText: line }));
const shot = (page, name) => page.screenshot({ path: path.join(SHOTS, `${name}.png`) });
const log = () => {
  const root = path.join(home, "data/logs");
  const files = fs.readdirSync(root, { recursive: true }).filter((name) => String(name).endsWith(".log"));
  return files.map((name) => fs.readFileSync(path.join(root, String(name)), "utf8")).join("\n");
};
const serverCount = () => {
  const running = execFileSync("ps", ["-eo", "args"]).toString().split("\n");
  return running.filter((line) => line.includes(`${COMMAND} server`)).length;
};

test("an untrusted workspace starts nothing", async () => {
  const page = await open(false);
  await openFile(page, "train.py");
  await page.locator(".view-line").filter({ hasText: "import torch" }).first().waitFor();
  // The extension host has started other extensions by the time it offers the outline of the file.
  await page.waitForTimeout(5000);
  assert.equal(serverCount(), 0);
  assert.equal(await page.locator(".codelens-decoration").count(), 0);
  await shot(page, "untrusted");
  await page.context().close();
});

test("a finding, its fix, a run, and the bytes of each line", async () => {
  const page = await open(true);
  await openFile(page, "notes.md");
  await page.locator(".view-line").filter({ hasText: "Notes" }).waitFor();
  await page.waitForTimeout(3000);
  assert.equal(serverCount(), 0, "a workspace without an open Python file starts nothing");

  await openFile(page, "train.py");
  await squiggles(page).first().waitFor({ timeout: 30_000 });
  const lens = page.locator(".codelens-decoration a").filter({ hasText: "Run on a virtual GPU (t4)" });
  await lens.waitFor();
  assert.equal(serverCount(), 1);
  await shot(page, "finding");

  await goTo(page, "15:20");
  await perform(page, "Show or Focus Hover");
  const hover = page.locator(".monaco-hover").filter({ hasText: "no-grad-not-called" }).first();
  await hover.waitFor();
  await hover.getByText("What it does").waitFor();
  await shot(page, "hover");
  // The finding's code is a link to the rule's page.
  await hover.locator("a.code-link").click();
  await page.locator(".tab.active").filter({ hasText: "no-grad-not-called" }).waitFor();
  await page.waitForTimeout(2000);
  await shot(page, "rule");
  // The page has the keyboard.
  await page.locator(".tab").filter({ hasText: "train.py" }).click();
  await page.locator(".view-line").filter({ hasText: "with torch.no_grad:" }).click();
  await goTo(page, "15:20");

  await perform(page, "Quick Fix...");
  await page.locator(".action-widget .focused").filter({ hasText: "memfit: Call it" }).waitFor();
  await page.keyboard.press("Enter");
  await page.locator(".view-line").filter({ hasText: "with torch.no_grad():" }).waitFor();
  await squiggles(page).first().waitFor({ state: "detached" });

  await lens.click();
  await hintOf(page, "return self.body(images)").waitFor({ timeout: 120_000 });
  const of = async (line) => (await hintOf(page, line).textContent()).replaceAll("\u00a0", " ");
  assert.equal(await of("return self.body(images)"), "384 MiB temporary, activations");
  assert.equal(await of("model = Net().cuda()"), "16.2 MiB parameters");
  await shot(page, "lines-light");
  // The file was saved before it ran, with the fix.
  assert.match(fs.readFileSync(path.join(folder, "train.py"), "utf8"), /with torch\.no_grad\(\):/);

  // A line that moves keeps its bytes; a line that changes loses them.
  await page.keyboard.press("Control+J");
  await page.locator(".view-line").filter({ hasText: "import torch" }).first().click();
  await goTo(page, 1);
  await page.keyboard.type("# A comment.\n");
  await page.locator(".view-line").filter({ hasText: "A comment" }).waitFor();
  await hintOf(page, "model = Net().cuda()").waitFor();
  await goTo(page, 21);
  await page.keyboard.press("End");
  await page.keyboard.type("  # changed");
  await hintOf(page, "model = Net().cuda()").waitFor({ state: "detached" });
  await hintOf(page, "optimizer.step()").waitFor();
  await hintOf(page, "optimizer.step()").hover();
  await page.locator(".monaco-hover").filter({ hasText: "Other lines of this file have changed" }).waitFor();
  await shot(page, "changed-light");

  await perform(page, "Toggle between Light/Dark Themes");
  await page.locator(".monaco-workbench.vs-dark").waitFor();
  await shot(page, "lines-dark");
  await page.setViewportSize({ width: 700, height: 700 });
  await page.keyboard.press("Control+B");
  await page.waitForTimeout(1000);
  await shot(page, "lines-narrow");
  await page.context().close();
});

test("a notebook's cells", async () => {
  const page = await open(true);
  await openFile(page, "train.ipynb");
  await page.locator(".notebookOverlay .cell").first().waitFor();
  await shot(page, "notebook");
  await squiggles(page).first().waitFor();
  await shot(page, "notebook");
  await page.context().close();
});

test("a missing command is named, with the way to install it", async () => {
  writeSettings("no-such-memfit");
  const page = await open(true);
  await openFile(page, "train.py");
  const message = page.locator(".notification-toast").filter({ hasText: "“no-such-memfit” was not found" });
  await message.waitFor({ timeout: 60_000 });
  assert.match((await message.textContent()) ?? "", /python -m pip install memfit/);
  await shot(page, "missing");
  await page.context().close();
  assert.doesNotMatch(log(), /UnhandledPromiseRejection/);
});
