// The calls of the npm package `openai`.
import OpenAI from "openai";

const [url, key, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of Peru?" }];
const options = { model, messages, temperature: 0, max_tokens: 16, mode: "forced" };
const check = (holds, said) => { if (!holds) throw new Error(JSON.stringify(said).slice(0, 300)); };
const answer = async (more = {}) => (await client.chat.completions.create({ ...options, ...more })).choices[0].message;

const calls = {
  chat: async () => check((await answer()).content, "nothing"),
  stream: async () => {
    let said = "";
    for await (const chunk of await client.chat.completions.create({ ...options, stream: true })) {
      said += chunk.choices[0].delta.content ?? "";
    }
    check(said === (await answer()).content, said);
  },
  batch: async () => {
    const said = await Promise.all(Array.from({ length: 16 }, () => answer()));
    check(new Set(said.map((one) => one.content)).size === 1, said);
  },
  tools: async () => check(!(await answer({ tools: [], parallel_tool_calls: true })).tool_calls, "called"),
  structured: () => answer({ response_format: { type: "json_object" } }),
  citations: async () => {
    const { content, annotations } = await answer();
    // This language counts UTF-16 units, and the offsets code points.
    const letters = Array.from(content);
    const cited = annotations.map(({ url_citation: c }) => letters.slice(c.start_index, c.end_index).join(""));
    check(cited.length && cited.every((one) => ["Lima", "Titicaca"].includes(one)), annotations);
  },
  nothing: async () => check((await answer({ threshold: 1 })).refusal, "said"),
  embeddings: async () => {
    const told = await client.embeddings.create({ model, input: Array(16).fill("Which lake?") });
    check(told.data.length === 16 && told.data[0].embedding.length > 1, told);
  },
  responses: async () => {
    const told = await client.responses.create({ model, input: "Which lake?", temperature: 0, mode: "forced" });
    check(told.output_text, told);
  },
};

const found = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    await call();
    found[name] = "green";
  } catch (error) {
    found[name] = `${error.constructor.name}: ${error.message}`.slice(0, 400);
  }
}
console.log(JSON.stringify(found));
