// Starts `memfit server` for Python, and runs scripts on a virtual GPU when the user asks for it.

import * as fs from "node:fs";
import * as path from "node:path";
import * as vscode from "vscode";
import { LanguageClient, type StaticFeature } from "vscode-languageclient/node";

const RUN = "memfit.run";
const RULE_SCHEME = "memfit-rule";
/** Key of the recording that is shown, in the workspace's state; an empty text shows none. */
const SHOWN = "recording";

let client: LanguageClient | undefined;
/** Starts and stops follow one another. */
let lastChange: Promise<void> = Promise.resolve();

export function activate(context: vscode.ExtensionContext): void {
  const register = (name: string, perform: (...args: never[]) => unknown) =>
    context.subscriptions.push(vscode.commands.registerCommand(name, perform));
  register(RUN, (uri: string, gpu: string) => run(context, vscode.Uri.parse(uri, true), gpu));
  register("memfit.runFile", () => {
    const uri = vscode.window.activeTextEditor?.document.uri;
    return uri && run(context, uri, setting("gpu", uri));
  });
  register("memfit.chooseRecording", () => chooseRecording(context));
  register("memfit.forgetRecording", () => show(context, ""));
  register("memfit.restart", () => restart(context));
  context.subscriptions.push(
    vscode.workspace.registerTextDocumentContentProvider(RULE_SCHEME, { provideTextDocumentContent: rulePage }),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("memfit.path")) {
        return restart(context);
      }
      return event.affectsConfiguration("memfit") ? sendSettings(context) : undefined;
    }),
  );
  void restart(context);
}

export async function deactivate(): Promise<void> {
  await lastChange;
  await client?.stop();
}

/** Stops the server if it runs, and starts it. */
function restart(context: vscode.ExtensionContext): Promise<void> {
  lastChange = lastChange.then(async () => {
    await client?.stop();
    client = undefined;
    const command = findCommand();
    if (command) {
      client = newClient(context, command);
      await client.start();
    }
  });
  return lastChange.catch((error: unknown) => {
    lastChange = Promise.resolve();
    void vscode.window.showErrorMessage(`memfit: the language server did not start: ${String(error)}`);
  });
}

function newClient(context: vscode.ExtensionContext, command: string): LanguageClient {
  const created = new LanguageClient(
    "memfit",
    { command, args: ["server"] },
    {
      documentSelector: [
        { language: "python", scheme: "file" },
        { language: "python", scheme: "untitled" },
        { notebook: "jupyter-notebook", language: "python" },
      ],
      initializationOptions: settings(context),
    },
  );
  const abilities: StaticFeature = {
    fillClientCapabilities: (capabilities) => {
      // The server offers the lens to editors that perform its command.
      capabilities.experimental = { ...capabilities.experimental, commands: { commands: [RUN] } };
      // The client pulls no diagnostics of a notebook's cells, so the server pushes them.
      delete capabilities.textDocument?.diagnostic;
    },
    initialize: () => {},
    getState: () => ({ kind: "static" }),
    clear: () => {},
  };
  created.registerFeature(abilities);
  return created;
}

function setting(name: string, scope?: vscode.Uri): string {
  return vscode.workspace.getConfiguration("memfit", scope).get<string>(name, "");
}

/** What the server is told. Settings that are `null` are the project's. */
function settings(context: vscode.ExtensionContext): Record<string, unknown> {
  const memfit = vscode.workspace.getConfiguration("memfit");
  const own = ["select", "extendSelect", "ignore", "severity", "gpu"].map((name) => [name, memfit.get(name)]);
  return {
    ...(Object.fromEntries(own) as Record<string, unknown>),
    recording: shownRecording(context) || null,
    rulePages: `${RULE_SCHEME}:/`,
  };
}

async function sendSettings(context: vscode.ExtensionContext): Promise<void> {
  if (client?.isRunning()) {
    const params = { settings: { memfit: settings(context) } };
    await client.sendNotification("workspace/didChangeConfiguration", params);
  }
}

function expanded(text: string): string {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? "";
  return text.replaceAll("${workspaceFolder}", folder);
}

/** Path of the command `memfit`. If there is none, says how to get it. */
function findCommand(): string | undefined {
  const named = expanded(setting("path")) || "memfit";
  const folders = path.isAbsolute(named) ? [""] : (process.env["PATH"] ?? "").split(path.delimiter);
  const found = folders.map((folder) => path.join(folder, named)).find(isExecutable);
  if (!found) {
    const text = `The command “${named}” was not found. Install it with “python -m pip install memfit”, or name it in the setting “memfit.path”.`;
    const open = "Open Settings";
    void vscode.window.showErrorMessage(text, open).then((chosen) => {
      if (chosen === open) {
        void vscode.commands.executeCommand("workbench.action.openSettings", "memfit.path");
      }
    });
  }
  return found;
}

function isExecutable(file: string): boolean {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}

async function rulePage(uri: vscode.Uri): Promise<string> {
  const name = path.basename(uri.path, ".md");
  const page = await client?.sendRequest<string | null>("memfit/rule", { name });
  return page ?? `There is no rule \`${name}\`.`;
}

/** Folder of the recordings, outside of the user's files. */
function storage(context: vscode.ExtensionContext): string {
  return (context.storageUri ?? context.globalStorageUri).fsPath;
}

function shownRecording(context: vscode.ExtensionContext): string {
  return context.workspaceState.get<string>(SHOWN, "");
}

async function show(context: vscode.ExtensionContext, recording: string): Promise<void> {
  await context.workspaceState.update(SHOWN, recording);
  await sendSettings(context);
}

async function chooseRecording(context: vscode.ExtensionContext): Promise<void> {
  const chosen = await vscode.window.showOpenDialog({ filters: { Recordings: ["memfit"] }, openLabel: "Show" });
  if (chosen?.[0]) {
    await show(context, chosen[0].fsPath);
  }
}

/** Runs a script on a virtual GPU in a terminal, and shows the bytes of its lines. */
async function run(context: vscode.ExtensionContext, uri: vscode.Uri, gpu: string): Promise<void> {
  const command = vscode.workspace.isTrusted ? findCommand() : undefined;
  const document = await vscode.workspace.openTextDocument(uri);
  // The command reads the file, not the editor.
  if (!command || uri.scheme !== "file" || !(await document.save())) {
    return;
  }
  const memfit = vscode.workspace.getConfiguration("memfit", uri);
  const folder = vscode.workspace.getWorkspaceFolder(uri)?.uri.fsPath ?? path.dirname(uri.fsPath);
  fs.mkdirSync(storage(context), { recursive: true });
  // A run that fails before its end leaves the recording of the last one.
  const output = path.join(storage(context), "last.memfit");
  const words = [
    ...["run", "--gpu", gpu, "-o", output, ...memfit.get<string[]>("runArguments", []), "--"],
    ...[expanded(setting("python", uri)) || "python", path.relative(folder, uri.fsPath)],
    ...memfit.get<string[]>("scriptArguments", []),
  ];
  const task = new vscode.Task(
    { type: "memfit" },
    vscode.TaskScope.Workspace,
    `${path.basename(uri.fsPath)} on ${gpu}`,
    "memfit",
    new vscode.ProcessExecution(command, words, { cwd: folder }),
  );
  task.presentationOptions = { clear: true, showReuseMessage: false };
  const execution = await vscode.tasks.executeTask(task);
  const ended = vscode.tasks.onDidEndTask(async (event) => {
    if (event.execution === execution) {
      ended.dispose();
      if (fs.existsSync(output)) {
        await show(context, output);
      }
    }
  });
}
