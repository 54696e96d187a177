// SPDX-License-Identifier: Apache-2.0
// run_wasm.mjs PROGRAM: run a WebAssembly module and print its characters.
import { readFileSync, writeSync } from "node:fs";

const characters = [];
const env = { put: (character) => characters.push(character) };
const { instance } = await WebAssembly.instantiate(readFileSync(process.argv[2]), { env });
instance.exports.start();
writeSync(1, Buffer.from(characters));
