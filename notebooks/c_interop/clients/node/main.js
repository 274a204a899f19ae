// node main.js FOLDER TOKENS [fail] < prompt: stream an answer, then print its token ids and what each token took.
const { readFileSync, writeSync } = require("fs");
const llm = require("./llm.node");

const [folder, tokens, fail] = process.argv.slice(2);
const prompt = readFileSync(0, "utf8");
let pieces = 0;

function show(text) {
  writeSync(1, text);
  pieces += 1;
  if (fail && pieces === 3) throw new Error("at the third piece");
}

try {
  const model = llm.open(folder);
  let answer;
  try {
    answer = llm.generate(model, prompt, Number(tokens), show);
  } catch (error) {
    if (!fail || pieces !== 3) throw error;
    console.error(`The callback failed: ${error.message}`);
    writeSync(1, "\n");
    answer = llm.generate(model, prompt, Number(tokens), show);
  }
  writeSync(1, `\nids: ${answer.ids.join(" ")}\n`);
  writeSync(1, `ms per token: ${answer.perTokenMs.toFixed(3)}, in the model: ${answer.inferMs.toFixed(3)}\n`);
  llm.close(model);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
