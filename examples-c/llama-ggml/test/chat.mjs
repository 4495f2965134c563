// node-llama-cpp's ways through a cache, greedily: a saved state restored, two sequences at once, a shifted context, a chat session.
// One line of JSON. The plugin comes, or does not, by GGML_BACKEND_PATH.
//
//   node chat.mjs <folder with node_modules/node-llama-cpp> <model> <text>
import {readFileSync, rmSync} from "node:fs";
import {createRequire} from "node:module";
import {tmpdir} from "node:os";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [project, modelPath, textPath] = process.argv.slice(2);
const entry = createRequire(join(resolve(project), "x.js")).resolve("node-llama-cpp");
const {getLlama, LlamaChatSession} = await import(pathToFileURL(entry));
const PROMPT = 2200, STEPS = 32;

const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const model = await llama.loadModel({modelPath});
const text = readFileSync(textPath, "utf8");
const prompt = model.tokenize(text.slice(0, 40000)).slice(0, PROMPT);
const state = join(tmpdir(), `iceformer-${process.pid}.state`);
const said = {};

// A state is only taken by a context with as many streams as the one that wrote it.
async function context(contextSize, sequences = 2) {
    return await model.createContext({contextSize, sequences, batchSize: 512, flashAttention: true, threads: 1});
}
// What follows some tokens, in a sequence that may know others already.
async function follow(sequence, tokens, steps) {
    const out = [];
    for await (const token of sequence.evaluate(tokens, {temperature: 0})) {
        out.push(token);
        if (out.length >= steps)
            break;
    }
    return model.detokenize(out);
}

const last = prompt.slice(-1);
{
    const one = await context(4096);
    const sequence = one.getSequence();
    await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(0, -1));
    await sequence.saveStateToFile(state);
    said.plain = await follow(sequence, last, STEPS);
    await one.dispose();
}
{
    const two = await context(4096);
    const sequences = [two.getSequence(), two.getSequence()];
    for (const sequence of sequences)
        await sequence.loadStateFromFile(state, {acceptRisk: true});
    [said.restored, said.beside] = await Promise.all([
        follow(sequences[0], last, STEPS),
        follow(sequences[1], [...last, ...model.tokenize("\n\nIn short,")], STEPS)
    ]);
    await two.dispose();
}
{
    const small = await context(PROMPT + 104);
    const sequence = small.getSequence();
    await sequence.loadStateFromFile(state, {acceptRisk: true});
    said.shifted = await follow(sequence, last, 200);
    await small.dispose();
}
{
    const chat = await context(4096);
    const session = new LlamaChatSession({contextSequence: chat.getSequence()});
    said.chat = await session.prompt(model.detokenize(prompt.slice(0, PROMPT - 100)) + "\n\nWhat is this text about?", {temperature: 0, maxTokens: STEPS});
    said.again = await session.prompt("Say it in one sentence.", {temperature: 0, maxTokens: STEPS});
    await chat.dispose();
}
rmSync(state);
console.log(JSON.stringify(said));
await llama.dispose();
