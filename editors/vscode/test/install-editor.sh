#!/bin/sh
# Installs code-server, which is VS Code in a browser, from the package registry alone: install-editor.sh FOLDER
#
# Its own install script downloads ripgrep from elsewhere. So scripts are off, and the native modules that the
# editor needs are built here, with a C++ compiler and Python.
set -eu
VERSION=4.100.3 # the last for Node.js 20
folder=$1
editor=$folder/node_modules/code-server
[ -e "$folder/complete-$VERSION" ] && exit 0
mkdir -p "$folder"
[ -e "$folder/package.json" ] || echo '{"private": true}' >"$folder/package.json"
npm install --prefix "$folder" --ignore-scripts "code-server@$VERSION"
(cd "$folder" && npm rebuild argon2 --build-from-source)
cd "$editor/lib/vscode"
npm install --omit=dev --ignore-scripts
npm rebuild @vscode/spdlog native-watchdog
# Its last script looks for a compiler of another system, after the module is built.
npm rebuild node-pty || [ -e node_modules/node-pty/build/Release/pty.node ]
ln -sfn node_modules node_modules.asar
touch "$folder/complete-$VERSION"
