// Client of `ems http` for Node 18 and later, Deno, Bun and browsers. It needs nothing else.

const PATIENCE_MS = 30_000; // for a server that is away, busy or started again

export class EmsError extends Error {
  // code is for programs; failed lists the receipts of an ack (or nack ...) that failed: [{receipt, code, message}]
  constructor(status, { error = { code: "failed", message: `HTTP ${status}` }, failed = [] } = {}) {
    super(error.message);
    Object.assign(this, { name: "EmsError", status, code: error.code, failed });
  }
}

export class Ems {
  constructor(url, token) {
    this.url = url.replace(/\/$/, "");
    this.headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  }

  // Options of a message: key, tag, headers, id, delay_s, priority, dedup_key, dedup_window_s.
  async send(topic, body, options = {}) {
    return (await this.sendMany(topic, [{ body, ...options }]))[0];
  }

  async sendMany(topic, messages) {
    const named = messages.map((one) => ({ id: crypto.randomUUID(), ...one })); // so that it can be repeated
    return (await this.post(`/v1/topics/${topic}/messages`, { messages: named })).messages;
  }

  // Calls a task of a group of workers; options: key, id, delay_s, priority. Its result: await ems.result(topic, id).
  async call(topic, group, task, args = [], options = {}) {
    const call = { id: crypto.randomUUID(), ...(Array.isArray(args) ? { args } : { kwargs: args }), ...options };
    return (await this.post(`/v1/topics/${topic}/groups/${group}/tasks/${task}`, call)).id;
  }

  // Options: n (1), wait_s (20), lease_s; signal: of an AbortController.
  async fetch(topic, group, { signal, ...options } = {}) {
    const path = `/v1/topics/${topic}/groups/${group}/fetch`;
    return (await this.post(path, { wait_s: 20, ...options }, { signal })).messages;
  }

  ack = (...receipts) => this.post("/v1/ack", { receipts });
  nack = (receipts, options = {}) => this.post("/v1/nack", { receipts, ...options }); // delay_s, dead, error
  release = (...receipts) => this.post("/v1/release", { receipts });
  extend = (receipts, seconds) => this.post("/v1/extend", { receipts, seconds });
  // Not repeated by itself, because the flow would get it twice.
  signal = (topic, flow, name, value = null) =>
    this.post(`/v1/topics/${topic}/signals`, { flow, name, value }, { patience: 0 });

  // Waits for the end of a call; onProgress gets {fraction, text}.
  async result(topic, id, onProgress = () => {}) {
    for await (const { event, data } of this.events(`/v1/topics/${topic}/results/events`, id)) {
      if (event === "progress") onProgress(data);
      else if (data.status === "done") return data.value;
      else throw new EmsError(409, { error: { code: data.status, message: data.error?.message ?? data.status } });
    }
  }

  // Yields {event: "value", data} for what a flow emits, and {event: "end", data: {state, value, error}}.
  flow = (topic, id) => this.events(`/v1/topics/${topic}/flows/events`, id);

  // Runs handler(message) for each message, `concurrency` at a time, until the signal aborts. A handler that throws is
  // retried as the group says; one that takes long keeps its message, for the lease is extended meanwhile.
  async run(topic, group, handler, { concurrency = 1, lease_s = 30, signal } = {}) {
    const one = async () => {
      while (!signal?.aborted) {
        const [message] = await this.fetch(topic, group, { lease_s, signal }).catch((error) => {
          if (signal?.aborted) return [];
          throw error;
        });
        if (message) await this.#handle(message, handler, lease_s);
      }
    };
    await Promise.all(Array.from({ length: concurrency }, one));
  }

  async #handle(message, handler, lease_s) {
    const { receipt } = message;
    const timer = setInterval(() => this.extend([receipt], lease_s).catch(() => {}), (lease_s * 1000) / 3);
    try {
      const error = await Promise.resolve(message).then(handler).then(() => null, (thrown) => String(thrown).slice(0, 9999) || "failed");
      await (error === null ? this.ack(receipt) : this.nack([receipt], { error }));
    } catch (error) {
      if (error.status !== 409) throw error; // 409: it took too long or is another's by now; it is delivered again
    } finally {
      clearInterval(timer);
    }
  }

  async post(path, body, { signal, patience = PATIENCE_MS } = {}) {
    const until = Date.now() + patience;
    for (let pause = 100; ; pause = Math.min(2 * pause, 2000)) {
      const init = { method: "POST", headers: this.headers, body: JSON.stringify(body), signal };
      const answer = await fetch(this.url + path, init).catch((error) => error);
      if (answer.ok) return answer.json();
      if ((answer.status ?? 503) !== 503 || Date.now() > until || signal?.aborted) {
        if (answer instanceof Error) throw answer;
        throw new EmsError(answer.status, await answer.json().catch(() => ({})));
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }

  // Server-sent events; the stream is opened anew from the last event on until it has told of its end.
  async *events(path, id) {
    let last = "";
    for (let until = Date.now() + PATIENCE_MS; ; ) {
      const headers = last ? { ...this.headers, "last-event-id": last } : this.headers;
      const answer = await fetch(`${this.url}${path}?id=${encodeURIComponent(id)}`, { headers }).catch((error) => error);
      if (answer.status === 204) return;
      if (!answer.ok && ((answer.status ?? 503) !== 503 || Date.now() > until))
        throw answer instanceof Error ? answer : new EmsError(answer.status, await answer.json().catch(() => ({})));
      try {
        let text = "";
        for await (const part of answer.ok ? answer.body.pipeThrough(new TextDecoderStream()) : []) {
          const parts = (text + part).split("\n\n");
          text = parts.pop();
          until = Date.now() + PATIENCE_MS;
          for (const block of parts) {
            const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
            last = fields.id ?? last;
            if (fields.data) yield { event: fields.event, data: JSON.parse(fields.data) };
            if (fields.id?.endsWith("-end")) return;
          }
        }
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // the connection was lost
      }
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}
