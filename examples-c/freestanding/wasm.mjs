// Runs one of the programs beside this file, built for wasm32: node wasm.mjs index.wasm
import { readFileSync } from "node:fs";

let memory;
const text = (at) => {
  const bytes = new Uint8Array(memory.buffer, at);
  return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
};
const env = {
  console_text: (at) => process.stdout.write(text(at)),
  console_number: (number) => process.stdout.write(String(number >>> 0)),
  // Not to be seen from outside.
  stack_used: () => 0,
};
const { instance } = await WebAssembly.instantiate(readFileSync(process.argv[2]), { env });
memory = instance.exports.memory;
process.exit(instance.exports.start());
