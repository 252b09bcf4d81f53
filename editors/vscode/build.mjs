// Bundles the extension, and collects the licences of what the bundle contains.

import { build } from "esbuild";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import path from "node:path";

const result = await build({
  entryPoints: ["src/extension.ts"],
  outfile: "out/extension.js",
  bundle: true,
  platform: "node",
  target: "node18",
  format: "cjs",
  external: ["vscode"],
  metafile: true,
});

const packages = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const inside = input.match(/^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//);
  if (inside) packages.add(inside[1]);
}
const texts = [readFileSync("../../LICENSE-MIT", "utf8")];
for (const folder of [...packages].sort()) {
  const license = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
  if (!license) throw new Error(`${folder} has no licence file`);
  texts.push(`The extension contains ${path.basename(folder)}:\n\n${readFileSync(path.join(folder, license), "utf8")}`);
}
writeFileSync("LICENSE.txt", texts.join(`\n${"-".repeat(80)}\n\n`));
